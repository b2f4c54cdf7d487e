#include "lockstep/data/transformations/cache_cursor.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {

CacheCursor::CacheCursor(Input input, std::uint64_t epoch, std::unique_ptr<CacheStore> store)
    : epoch_(epoch), store_(std::move(store)), input_(std::move(input)) {}

// Decides where elements come from when the first one is requested.
void CacheCursor::begin() {
  if (mode_ != Mode::Undecided) return;
  if (store_->open()) {
    require(given_ <= store_->count(),
            "[cache] the position is after {} elements, but the cache has {}: it has changed since",
            given_, store_->count());
    mode_ = Mode::Serving;
    return;
  }
  // A pass that was restored in the middle lacks the elements before and cannot fill the cache.
  if (given_ == 0 && store_->begin()) {
    mode_ = Mode::Keeping;
    at_input_ = true;
    return;
  }
  if (given_ == 0 && store_->open()) {
    mode_ = Mode::Serving;
    return;
  }
  mode_ = Mode::Passing;
  if (at_input_) return;
  const std::int64_t passed = input_.skip(given_);
  at_input_ = true;
  require(passed == given_,
          "[cache] the position is after {} elements, but there are {}: the data set has changed "
          "since",
          given_, passed);
}

std::optional<Element> CacheCursor::next() {
  if (error_) std::rethrow_exception(error_);
  try {
    begin();
    std::optional<Element> element;
    if (mode_ == Mode::Serving) {
      if (given_ < store_->count()) element = store_->read(given_);
    } else {
      element = mode_ == Mode::Keeping ? keep_next() : input_.next();
    }
    if (!element) return std::nullopt;
    ++given_;
    element->sample.epoch = epoch_in_pass(epoch_, element->sample.epoch);
    return element;
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

std::optional<Element> CacheCursor::keep_next() {
  std::optional<Element> element = input_.next();
  // If the store throws, the input is one element ahead of us.
  at_input_ = false;
  if (element) {
    store_->keep(*element);
  } else {
    store_->finish();
    mode_ = Mode::Passing;
  }
  at_input_ = true;
  return element;
}

// Elements have to be produced for the cache even if they are skipped.
std::int64_t CacheCursor::skip(std::int64_t count) {
  if (error_) std::rethrow_exception(error_);
  begin();
  if (mode_ == Mode::Keeping) return Cursor::skip(count);
  const std::int64_t passed =
      mode_ == Mode::Serving ? std::min(count, store_->count() - given_) : input_.skip(count);
  given_ += passed;
  return passed;
}

void CacheCursor::save(PositionWriter& state) const {
  const bool with_input = mode_ != Mode::Serving && at_input_;
  state.word(static_cast<std::uint64_t>(given_));
  state.word(with_input ? 1 : 0);
  if (!with_input) return;
  auto input = std::make_shared<PositionWriter>();
  input_.save(*input);
  state.nested(std::move(input));
}

void CacheCursor::restore(PositionReader& state) {
  given_ = state.count(std::numeric_limits<std::int64_t>::max());
  at_input_ = state.count(1) == 1;
  if (!at_input_) return;
  PositionReader input = state.nested();
  input_.restore(input);
  input.expect_end();
}

std::int64_t CacheCursor::state_size() const {
  return mode_ == Mode::Serving ? 1 : input_.state_size();
}

}  // namespace lockstep
