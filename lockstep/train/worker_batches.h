// WorkerBatches: the batches that a worker reads, and which rows of the global batches they hold.
#pragma once

#include <optional>

#include "lockstep/data/dataset.h"

namespace lockstep {

struct ModelImpl;

// What a worker whose samples are used up goes on with while others still have some.
inline Element element_without_rows(const std::vector<ElementSpec>& spec) {
  Element element;
  for (const ElementSpec& part : spec) {
    element.push_back(Tensor(part.dtype, part.shape.with(0, 0)));
  }
  return element;
}

struct WorkerBatches {
  Dataset batches;
  // Whether each batch holds only the rows of this worker; otherwise those of all workers, who then
  // read the same.
  bool own_rows_only = false;
  // What this worker's iterators read; none: everything.
  std::optional<WorkerShare> share = {};

  Element without_rows() const { return element_without_rows(batches.element_spec()); }
};

// With several workers, each reads its own rows of the batches, unless pieces follow the speed of
// the replicas: then every worker needs whatever rows its replicas get.
//
// For training, by the data set's policy.
WorkerBatches training_share(ModelImpl& impl, WorkerBatches data);
// For evaluate and predict: rows of the batches of one worker, in order, whatever the policy; with
// Off, every worker reads all of them.
WorkerBatches evaluation_share(ModelImpl& impl, WorkerBatches data);

}  // namespace lockstep
