// Factories of the nodes in this folder, one file each. They check their options: UsageError.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/pipeline/node.h"
#include "lockstep/data/sources/table.h"

namespace lockstep {

// Whether files are read from beginning to end, or hold one sample each and are opened only for it.
enum class FileAccess { Records, Samples };

// `name` becomes part of the signature.
NodePtr make_tensors(std::vector<Column> columns, std::string name = "tensors");
NodePtr make_range(std::int64_t count);
// Marks the elements of a source as standing for files, one each, so that they can be dealt out to
// workers.
NodePtr make_file_list(NodePtr source, FileAccess access);
NodePtr make_generator(Generator generator, GeneratorOptions options);

NodePtr make_shuffle(NodePtr input, ShuffleOptions options);
NodePtr make_batch(NodePtr input, std::int64_t size, BatchOptions options);
NodePtr make_padded_batch(NodePtr input, std::int64_t size, PaddedBatchOptions options);
NodePtr make_unbatch(NodePtr input);
NodePtr make_take(NodePtr input, std::int64_t count);
NodePtr make_skip(NodePtr input, std::int64_t count);
NodePtr make_repeat(NodePtr input, std::int64_t count);
NodePtr make_map(NodePtr input, MapFunction function, MapOptions options);
NodePtr make_map(NodePtr input, RandomMapFunction function, MapOptions options);
NodePtr make_map_into(NodePtr input, WriteFunction function, MapOptions options);
NodePtr make_filter(NodePtr input, Predicate predicate, FilterOptions options);
// count 0: the shard of the iterator (IteratorOptions).
NodePtr make_shard(NodePtr input, std::int64_t count, std::int64_t index);
NodePtr make_interleave(NodePtr input, DatasetFunction function, InterleaveOptions options);
NodePtr make_zip(NodePtr first, NodePtr second);
NodePtr make_concatenate(NodePtr first, NodePtr second);
NodePtr make_enumerate(NodePtr input, std::int64_t start);
NodePtr make_memory_cache(NodePtr input);
NodePtr make_file_cache(NodePtr input, std::filesystem::path file);
NodePtr make_snapshot(NodePtr input, std::filesystem::path folder);
NodePtr make_snapshot_reader(const std::filesystem::path& folder);
NodePtr make_prefetch(NodePtr input, int buffer);

}  // namespace lockstep
