#include "lockstep/data/pipeline/piece_selector.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/share_rules.h"
#include "lockstep/data/sources/table.h"

namespace lockstep {
namespace {

// The node behind those that make one element of one.
NodePtr base_of(NodePtr node) {
  while (node->share_rules().one_to_one) node = node->inputs().front();
  return node;
}

}  // namespace

PieceSelector::PieceSelector(const NodePtr& input, const Context& context, const WorkerShare& share,
                             std::int64_t size, bool drop_remainder)
    : base_(base_of(input)),
      context_(context),
      share_(share),
      size_(size),
      drop_remainder_(drop_remainder),
      read_once_(!may_start_early_throughout(*base_)),
      stage_(base_->name()),
      input_(std::make_unique<Input>(base_, context_)) {}

std::optional<PieceSelector::Selected> PieceSelector::next_batch() {
  std::lock_guard lock(mutex_);
  if (batches_.empty() && !read_batch()) return std::nullopt;
  Selected selected = std::move(batches_.front());
  batches_.pop_front();
  return selected;
}

std::optional<Element> PieceSelector::next_element() {
  std::lock_guard lock(mutex_);
  while (elements_.empty()) {
    if (!read_batch()) return std::nullopt;
  }
  Element element = std::move(elements_.front());
  elements_.pop_front();
  return element;
}

std::int64_t PieceSelector::skip_batches(std::int64_t count) {
  std::lock_guard lock(mutex_);
  std::int64_t passed = 0;
  while (passed < count && is_batch(input_->skip(size_))) ++passed;
  return passed;
}

Position PieceSelector::position() {
  std::lock_guard lock(mutex_);
  return input_->position();
}

void PieceSelector::restore(PositionReader& state) {
  std::lock_guard lock(mutex_);
  input_->restore(state);
}

// False at the end.
bool PieceSelector::read_batch() {
  if (error_) std::rethrow_exception(error_);
  if (ended_) return false;
  try {
    std::vector<Element> kept;
    const std::int64_t rows = input_->table() != nullptr ? read_rows(kept)
                              : read_once_               ? read_whole(kept)
                                                         : read_selecting(kept);
    ended_ = !is_batch(rows);
    if (ended_) return false;
    batches_.push_back({.piece = {.rows_of_batch = rows, .rows = share_.rows_of(rows)},
                        .after = input_->position()});
    for (Element& element : kept) elements_.push_back(std::move(element));
    return true;
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

// The functions below read a global batch, keep the worker's rows and return the number of all.

std::int64_t PieceSelector::read_rows(std::vector<Element>& kept) {
  row_numbers_.resize(static_cast<std::size_t>(size_));
  const std::int64_t rows = input_->next_rows(row_numbers_);
  const Piece mine = share_.rows_of(rows);
  for (std::int64_t i = mine.begin; i < mine.end; ++i) {
    kept.push_back(input_->table()->element(row_numbers_[static_cast<std::size_t>(i)]));
  }
  return rows;
}

std::int64_t PieceSelector::read_whole(std::vector<Element>& kept) {
  while (std::ssize(kept) < size_) {
    std::optional<Element> element = input_->next();
    if (!element) break;
    kept.push_back(std::move(*element));
  }
  const std::int64_t rows = std::ssize(kept);
  const Piece mine = share_.rows_of(rows);
  kept.erase(kept.begin() + mine.end, kept.end());
  kept.erase(kept.begin(), kept.begin() + mine.begin);
  return rows;
}

namespace {

// Skips to row `mine.begin`, keeps the worker's rows, and skips those up to row `batch`.
std::int64_t read_piece(Input& input, Piece mine, std::int64_t batch, std::vector<Element>& kept) {
  std::int64_t rows = mine.begin > 0 ? input.skip(mine.begin) : 0;
  if (rows < mine.begin) return rows;
  for (; rows < mine.end; ++rows) {
    std::optional<Element> element = input.next();
    if (!element) return rows;
    kept.push_back(std::move(*element));
  }
  return rows + (batch > rows ? input.skip(batch - rows) : 0);
}

}  // namespace

std::int64_t PieceSelector::read_selecting(std::vector<Element>& kept) {
  const Piece expected = share_.rows_of(size_);
  // The first row of a short batch is never selected later than that of a full one.
  const Position before = expected.begin > 0 ? input_->position() : Position();
  const std::int64_t rows = read_piece(*input_, expected, size_, kept);
  if (rows == size_ || !is_batch(rows)) return rows;
  const Piece mine = share_.rows_of(rows);
  if (mine.begin != expected.begin) return read_again(before, mine, rows, kept);
  kept.resize(static_cast<std::size_t>(mine.size()));
  return rows;
}

std::int64_t PieceSelector::read_again(const Position& from, Piece rows, std::int64_t batch,
                                       std::vector<Element>& kept) {
  PositionWriter writer;
  Input::save(from, writer);
  const std::string bytes = writer.bytes();
  PositionReader reader(bytes);
  auto again = std::make_unique<Input>(base_, context_);
  again->restore(reader);
  kept.clear();
  const std::int64_t there = read_piece(*again, rows, batch, kept);
  require(there == batch,
          "[shard] {} gave {} elements of a batch when they were read again, and {} before: the "
          "data set must give the same elements every time",
          base_->name(), there, batch);
  input_ = std::move(again);
  return batch;
}

std::vector<Element> next_elements(Input& input, std::int64_t count) {
  std::vector<Element> elements;
  while (std::ssize(elements) < count) {
    std::optional<Element> element = input.next();
    if (!element) break;
    elements.push_back(std::move(*element));
  }
  return elements;
}

std::optional<PieceRows> next_piece(PieceSelector& selector, Input& input,
                                    std::optional<Position>& after) {
  if (!after) after = selector.position();
  std::optional<PieceSelector::Selected> selected = selector.next_batch();
  if (!selected) {
    after = selector.position();
    return std::nullopt;
  }
  const std::int64_t count = selected->piece.rows.size();
  PieceRows rows{.elements = next_elements(input, count), .piece = selected->piece};
  ensure(std::ssize(rows.elements) == count, "{} of {} rows of a piece were made",
         rows.elements.size(), count);
  after = std::move(selected->after);
  return rows;
}

}  // namespace lockstep
