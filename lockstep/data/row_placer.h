// RowPlacer: where the rows of batches go, one after the other, so that whoever makes the rows can
// write them in place. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

class RowPlacer {
 public:
  // For batches of `size` rows of this spec.
  RowPlacer(std::vector<ElementSpec> row, std::int64_t size, Device& memory);

  // Tensors for the next row. Rows before it may yet turn out to be missing; then those that follow
  // have to be moved together, up to the next batch that begins behind them.
  Element place();
  // One of the rows that were placed will not come.
  void missing() { ++missing_; }

 private:
  std::vector<ElementSpec> row_;
  std::int64_t size_;
  std::vector<BufferPool> pools_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // of the batch that is being filled
  std::int64_t next_ = 0;                         // row of it
  std::int64_t placed_ = 0;
  std::int64_t missing_ = 0;
};

// The batch that these rows already are, because they were placed so; nothing where they were not.
std::optional<Element> as_they_lie(std::span<const Element> rows,
                                   const std::vector<ElementSpec>& batch);

}  // namespace lockstep
