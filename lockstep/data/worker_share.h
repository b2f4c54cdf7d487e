// How several workers divide a data set: the policy that the user chooses and the share of one
// worker.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/base/pieces.h"

namespace lockstep {

// How the samples of an epoch are divided among workers, as tf.data's AutoShardPolicy:
//   File  The files of the sources are dealt out: file i belongs to worker i % workers. A worker
//         reads only its files; the batches are composed of other samples than those of one worker.
//   Data  Every worker takes its piece of every global batch, so that together they see the batches
//         of one worker. Rows of others are not mapped or decoded where that can be avoided.
//   Off   Every worker sees all samples.
//   Auto  File if all sources are lists of record files (read_tfrecords, read_examples,
//         read_text_lines, read_csv), each of at least as many files as workers, and all
//         transformations give every sample once in whatever order the files are read (so no take,
//         skip, shard, zip, enumerate or snapshot), and the batch size has a row for every rank.
//         Otherwise Data, also for folders of images: there, skipping a sample costs nothing.
enum class AutoShardPolicy { Auto, File, Data, Off };

// Options that a data set hands on to those derived from it.
struct DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::Auto;
};

// The share of one of several workers in an epoch. The last batch() or padded_batch() of the data
// set has the global batch size. With Data, its n rows are split over all ranks in pieces of
// ceil(n / ranks), the last ones shorter or empty; a worker gets the pieces of its ranks,
// [first_rank, end_rank), as one element, with 0 rows if they are empty. With File and Off, a
// worker makes batches of its own, whose sizes add up to the global one over all workers.
struct WorkerShare {
  int worker = 0;
  int workers = 1;
  int first_rank = 0;
  int end_rank = 1;
  int ranks = 1;
  AutoShardPolicy policy = AutoShardPolicy::Auto;  // Auto: that of the data set

  // The worker's rows of a global batch of n rows.
  Piece rows_of(std::int64_t n) const { return evenly_split_range(n, ranks, first_rank, end_rank); }
  // The most rows that it gets of any global batch of at most n rows: a shorter batch can give a
  // worker more rows than a full one, as 6 rows over 3 ranks (2, 2, 2) and 7 (3, 3, 1) do.
  std::int64_t most_rows_of(std::int64_t n) const {
    return std::min(n, (end_rank - first_rank) * ((n + ranks - 1) / ranks));
  }
  bool operator==(const WorkerShare&) const = default;
};

// Where the rows of an element lie in the global batch that it is a piece of.
struct BatchPiece {
  std::int64_t rows_of_batch = 0;
  Piece rows;
  bool operator==(const BatchPiece&) const = default;
};

}  // namespace lockstep
