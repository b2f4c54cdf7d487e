// WorkerBatches: the batches that a worker reads, and which rows of the global batches they hold.
#pragma once

#include "lockstep/data/dataset.h"

namespace lockstep {

struct WorkerBatches {
  Dataset batches;
  // Whether each batch holds only the rows of this worker; otherwise those of all workers, who then
  // read the same.
  bool own_rows_only = false;
  // What this worker's iterators read; none: everything.
  std::optional<WorkerShare> share = {};

  // What a worker whose samples are used up goes on with while others still have some.
  Element without_rows() const {
    Element element;
    for (const ElementSpec& part : batches.element_spec()) {
      element.push_back(Tensor(part.dtype, part.shape.with(0, 0)));
    }
    return element;
  }
};

}  // namespace lockstep
