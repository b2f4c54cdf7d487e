// RowPlacer: hands out the rows of batches one after the other, so that a stage can write its
// elements directly into the batch. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/pipeline/buffer_pool.h"

namespace lockstep {

class RowPlacer {
 public:
  // For batches of `size` rows of this spec.
  RowPlacer(std::vector<ElementSpec> row, std::int64_t size, Device& memory);

  // Tensors for the next row. If an earlier row turns out to be missing, the rows after it have to
  // be copied together, until a batch starts that was placed knowing about it.
  Element place();
  // One of the rows handed out will not be used.
  void missing() { ++missing_; }

 private:
  std::vector<ElementSpec> row_;
  std::int64_t size_;
  std::vector<BufferPool> pools_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // of the current batch
  std::int64_t next_ = 0;                         // row in it
  std::int64_t placed_ = 0;
  std::int64_t missing_ = 0;
};

// These rows as a batch without copying, if they were placed one after the other; else nullopt.
std::optional<Element> as_they_lie(std::span<const Element> rows,
                                   const std::vector<ElementSpec>& batch);

}  // namespace lockstep
