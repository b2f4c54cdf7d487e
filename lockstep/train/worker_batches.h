// WorkerBatches: the batches that a worker reads, and which rows of the global batches they hold.
#pragma once

#include "lockstep/data/dataset.h"

namespace lockstep {

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

}  // namespace lockstep
