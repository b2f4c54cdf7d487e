// Leaves the elements of a worker's pieces, before maps turn them into samples: a worker does not
// decode the images of others.
//
//   base ─ PieceSelector ─ SelectCursor ─ map ─ prefetch ─ batch
//             └──────────── pieces ─────────────────────────┘
//
// The selector reads the elements of one global batch after the other, skips those of others, and
// tells the batch how many rows each has and which are its own, and the position after it. Maps
// may run ahead: whoever first needs the next global batch, the batch or a map's thread, has it
// read.
//
// Which rows are a worker's depends on how many the batch has, and the last one may be short. The
// selector reads a batch as a full one. If it ends early, and other rows are the worker's, it goes
// back to the position before the batch. Where a user's generator would notice, all elements of a
// batch are read before some are selected.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/node.h"

namespace lockstep {

class PieceSelector {
 public:
  // Of the elements that a batch reads from `input`, in batches of `size`. The context is that of
  // the input, without a share.
  PieceSelector(const NodePtr& input, const Context& context, const WorkerShare& share,
                std::int64_t size, bool drop_remainder);

  // Whether this is the node whose elements it selects.
  bool selects_from(const DatasetNode& node) const { return base_.get() == &node; }
  // Counts the elements that it leaves.
  Stage& stage() { return stage_; }

  struct Selected {
    BatchPiece piece;
    Position after;  // of the base, after the global batch
  };
  // For the batch: the next global batch; nullopt at the end, when position() is that of the end.
  std::optional<Selected> next_batch();
  // For the maps: the next element of the worker's pieces.
  std::optional<Element> next_element();
  // Skips up to `count` global batches; returns how many. Only before any other call.
  std::int64_t skip_batches(std::int64_t count);

  Position position();
  void restore(PositionReader& state);

 private:
  bool read_batch();
  std::int64_t read_rows(std::vector<Element>& kept);
  std::int64_t read_whole(std::vector<Element>& kept);
  std::int64_t read_selecting(std::vector<Element>& kept);
  std::int64_t read_again(const Position& from, Piece rows, std::int64_t batch,
                          std::vector<Element>& kept);
  bool is_batch(std::int64_t rows) const { return rows == size_ || (rows > 0 && !drop_remainder_); }

  NodePtr base_;
  Context context_;
  WorkerShare share_;
  std::int64_t size_;
  bool drop_remainder_;
  bool read_once_;  // a user's generator could notice if elements were read again
  Stage stage_;

  std::mutex mutex_;  // guards the members below
  std::unique_ptr<Input> input_;
  std::deque<Selected> batches_;
  std::deque<Element> elements_;
  std::vector<std::int64_t> row_numbers_;
  bool ended_ = false;
  std::exception_ptr error_;
};

// For batches. Up to `count` elements of an input.
std::vector<Element> next_elements(Input& input, std::int64_t count);

struct PieceRows {
  std::vector<Element> elements;
  BatchPiece piece;
};
// The worker's rows of the next global batch, made from what the selector leaves; nullopt at the
// end. Sets `after` to the position after it.
std::optional<PieceRows> next_piece(PieceSelector& selector, Input& input,
                                    std::optional<Position>& after);

// The elements that a selector leaves, for the first map.
class SelectCursor final : public Cursor {
 public:
  explicit SelectCursor(std::shared_ptr<PieceSelector> selector) : selector_(std::move(selector)) {}

  std::optional<Element> next() override { return selector_->next_element(); }
  // The batch knows its position from the selector.
  bool has_state() const override { return false; }
  void save(PositionWriter&) const override {
    fail<InternalError>("a cursor without state was asked to save it");
  }
  void restore(PositionReader& state) override { selector_->restore(state); }
  Position position() override { return {}; }

 private:
  std::shared_ptr<PieceSelector> selector_;
};

}  // namespace lockstep
