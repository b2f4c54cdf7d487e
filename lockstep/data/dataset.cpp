#include "lockstep/data/dataset.h"

#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/dataset_iterator.h"
#include "lockstep/data/pipeline/share_rules.h"
#include "lockstep/data/transformations.h"

namespace lockstep {

Dataset Dataset::from_tensor_slices(std::vector<Tensor> tensors) {
  std::vector<Column> columns;
  for (Tensor& tensor : tensors) {
    const DType dtype = tensor.dtype();
    columns.push_back({.stored = std::move(tensor), .dtype = dtype});
  }
  return Dataset(make_tensors(std::move(columns)));
}

Dataset Dataset::from_tensors(std::vector<Tensor> tensors) {
  require(!tensors.empty(), "[from_tensors] a data set needs at least one tensor");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    require(tensors[i].defined(), "[from_tensors] component {} is an undefined tensor", i);
    std::vector<std::int64_t> dims{1};
    const std::span<const std::int64_t> inner = tensors[i].shape().dims();
    dims.insert(dims.end(), inner.begin(), inner.end());
    tensors[i] = tensors[i].reshaped(Shape(std::move(dims)));
  }
  return from_tensor_slices(std::move(tensors));
}

Dataset Dataset::from_generator(Generator generator, GeneratorOptions options) {
  return Dataset(make_generator(std::move(generator), std::move(options)));
}

Dataset Dataset::range(std::int64_t count) {
  return Dataset(make_range(count));
}

Dataset Dataset::shuffle(ShuffleOptions options) const {
  return then(make_shuffle(node_, options));
}

Dataset Dataset::shuffle(std::int64_t buffer, ShuffleOptions options) const {
  require(options.buffer == 0 || options.buffer == buffer,
          "[shuffle] the buffer size is given twice, as {} and {}; give one", buffer,
          options.buffer);
  options.buffer = buffer;
  return shuffle(options);
}

Dataset Dataset::batch(std::int64_t size, BatchOptions options) const {
  return then(make_batch(node_, size, options));
}

Dataset Dataset::padded_batch(std::int64_t size, PaddedBatchOptions options) const {
  return then(make_padded_batch(node_, size, std::move(options)));
}

Dataset Dataset::unbatch() const {
  return then(make_unbatch(node_));
}

Dataset Dataset::take(std::int64_t count) const {
  return count == -1 ? *this : then(make_take(node_, count));
}

Dataset Dataset::skip(std::int64_t count) const {
  return then(count == -1 ? make_take(node_, 0) : make_skip(node_, count));
}

Dataset Dataset::repeat(std::int64_t count) const {
  return then(make_repeat(node_, count));
}

Dataset Dataset::map(MapFunction function, MapOptions options) const {
  return then(make_map(node_, std::move(function), std::move(options)));
}

Dataset Dataset::map(RandomMapFunction function, MapOptions options) const {
  return then(make_map(node_, std::move(function), std::move(options)));
}

Dataset Dataset::map_into(WriteFunction function, MapOptions options) const {
  return then(make_map_into(node_, std::move(function), std::move(options)));
}

Dataset Dataset::filter(Predicate predicate, FilterOptions options) const {
  return then(make_filter(node_, std::move(predicate), std::move(options)));
}

Dataset Dataset::shard(std::int64_t count, std::int64_t index) const {
  require(count > 0, "[shard] the number of shards must be at least 1, not {}", count);
  return then(make_shard(node_, count, index));
}

Dataset Dataset::shard() const {
  return then(make_shard(node_, 0, 0));
}

Dataset Dataset::interleave(DatasetFunction function, InterleaveOptions options) const {
  return then(make_interleave(node_, std::move(function), options));
}

Dataset Dataset::zip(const Dataset& other) const {
  return then(make_zip(node_, other.node_));
}

Dataset Dataset::concatenate(const Dataset& other) const {
  return then(make_concatenate(node_, other.node_));
}

Dataset Dataset::enumerate(std::int64_t start) const {
  return then(make_enumerate(node_, start));
}

Dataset Dataset::cache() const {
  return then(make_memory_cache(node_));
}

Dataset Dataset::cache(const std::filesystem::path& file) const {
  return then(make_file_cache(node_, file));
}

Dataset Dataset::snapshot(const std::filesystem::path& folder) const {
  return then(make_snapshot(node_, folder));
}

Dataset Dataset::load(const std::filesystem::path& folder) {
  return Dataset(make_snapshot_reader(folder));
}

Dataset Dataset::prefetch(int buffer) const {
  return then(make_prefetch(node_, buffer));
}

Dataset Dataset::with_budget(Budget budget) const {
  Dataset dataset = *this;
  dataset.budget_ = budget;
  return dataset;
}

Dataset Dataset::with_tuning(std::shared_ptr<PipelineTuning> tuning) const {
  require(tuning != nullptr, "[with_tuning] the tuning is null");
  Dataset dataset = *this;
  dataset.tuning_ = std::move(tuning);
  return dataset;
}

Dataset Dataset::with_options(DatasetOptions options) const {
  Dataset dataset = *this;
  dataset.options_ = options;
  return dataset;
}

AutoShardPolicy Dataset::resolve_policy(const WorkerShare& share) const {
  return resolved(*node_, share, options_.auto_shard_policy).policy;
}

AutoShardPolicy Dataset::resolve_policy(int workers) const {
  return resolve_policy(WorkerShare{.workers = workers, .ranks = workers});
}

std::vector<ElementSpec> Dataset::element_spec() const {
  return node_->element_spec();
}

std::optional<std::int64_t> Dataset::cardinality() const {
  const std::int64_t count = node_->cardinality();
  return count >= 0 ? std::optional(count) : std::nullopt;
}

std::unique_ptr<Iterator> Dataset::iterator(std::uint64_t epoch) const {
  return iterator(IteratorOptions{.epoch = epoch});
}

std::unique_ptr<Iterator> Dataset::iterator(const IteratorOptions& options) const {
  if (!options.share) {
    return std::make_unique<DatasetIterator>(node_, budget_, tuning_, options);
  }
  IteratorOptions shared = options;
  shared.share = resolved(*node_, *options.share, options_.auto_shard_policy);
  return std::make_unique<DatasetIterator>(node_, budget_, tuning_, shared);
}

PipelineReport Dataset::explain(ExplainOptions options) const {
  const std::unique_ptr<Iterator> running = iterator(options.iterator);
  const std::int64_t until = now_ns() + static_cast<std::int64_t>(options.seconds * 1e9);
  std::int64_t given = 0;
  while (now_ns() < until && (!options.elements || given < *options.elements) && running->next()) {
    ++given;
  }
  return running->report();
}

ElementIterator::ElementIterator(std::unique_ptr<Iterator> iterator)
    : iterator_(std::move(iterator)), element_(std::make_shared<Element>()) {
  ++*this;
}

ElementIterator& ElementIterator::operator++() {
  std::optional<Element> next = iterator_->next();
  if (next) {
    *element_ = std::move(*next);
  } else {
    element_ = nullptr;
  }
  return *this;
}

std::string describe(const std::vector<ElementSpec>& spec) {
  std::string text;
  for (const ElementSpec& component : spec) {
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", name_of(component.dtype),
                        component.shape, component.varies ? " of any extent" : "");
  }
  return text;
}

std::ostream& operator<<(std::ostream& stream, const ElementSpec& spec) {
  return stream << describe({spec});
}

std::ostream& operator<<(std::ostream& stream, const std::vector<ElementSpec>& spec) {
  return stream << describe(spec);
}

std::ostream& operator<<(std::ostream& stream, const Dataset& dataset) {
  const std::int64_t count = dataset.node()->cardinality();
  const std::string elements = count >= 0
                                   ? fmt::format("{} element{}", count, count == 1 ? "" : "s")
                               : count == kInfinite ? "infinitely many elements"
                                                    : "elements";
  return stream << fmt::format("Dataset({}: {})", elements, describe(dataset.element_spec()));
}

}  // namespace lockstep
