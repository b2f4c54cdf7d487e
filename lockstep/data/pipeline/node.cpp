#include "lockstep/data/pipeline/node.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/pipeline/piece_selector.h"
#include "lockstep/data/pipeline/reshard_cursor.h"
#include "lockstep/data/pipeline/share_rules.h"

namespace lockstep {
namespace {

// A new state is taken once this many elements have passed, or as many as a state holds if more.
constexpr std::int64_t kLeastInterval = 64;

// A new state is taken long before this. The limit keeps a damaged position from skipping through
// an infinite data set forever.
constexpr std::int64_t kMostPassed = std::int64_t{1} << 28;

enum class StateKind : std::uint64_t { OwnCursor, ReshardShards, ReshardFiles };

StateKind kind_of(const Cursor& cursor) {
  const auto* rest = dynamic_cast<const ReshardCursor*>(&cursor);
  if (rest == nullptr) return StateKind::OwnCursor;
  return rest->former() == FormerParts::Files ? StateKind::ReshardFiles : StateKind::ReshardShards;
}

}  // namespace

std::int64_t Cursor::skip(std::int64_t count) {
  std::int64_t passed = 0;
  while (passed < count && next()) ++passed;
  return passed;
}

std::int64_t Cursor::next_rows(std::span<std::int64_t>) {
  fail<InternalError>("rows were requested from a cursor without a table");
}

std::optional<RowsWritten> Cursor::next_into(std::span<Tensor> destination) {
  const std::optional<Element> element = next();
  if (!element) return std::nullopt;
  return RowsWritten{.rows = copy_into(*element, destination), .piece = element->piece};
}

Position Cursor::position() {
  fail<InternalError>("a cursor with a state was asked for the position of its input");
}

Element restored_element(PositionReader& state, const std::vector<ElementSpec>& spec) {
  Element element = state.element();
  const bool fits =
      std::ranges::equal(element, spec, [](const Tensor& have, const ElementSpec& want) {
        return have.dtype() == want.dtype && have.shape().rank() == want.shape.rank();
      });
  require(fits, "[data] the saved position is damaged: it holds an element that is not {}",
          describe(spec));
  return element;
}

Input::Input(NodePtr node, const Context& context)
    : node_(std::move(node)),
      context_(context),
      stage_(&context.runtime->stage(*node_)),
      cursor_(cursor_of_share(*node_, context)) {
  // The elements of others are counted where they are left out.
  if (context.selector != nullptr && context.selector->selects_from(*node_)) {
    stage_ = &context.selector->stage();
  }
}

std::optional<Element> Input::next() {
  if (error_) std::rethrow_exception(error_);
  StageTimer timer(stage_);
  std::optional<Element> element;
  try {
    element = cursor_->next();
  } catch (...) {
    error_ = caught_in(stage_->name());
    std::rethrow_exception(error_);
  }
  if (element) {
    ++since_.skip;
    ++count_;
    stage_->items.fetch_add(1, std::memory_order_relaxed);
    stage_->bytes.fetch_add(static_cast<std::int64_t>(bytes_of(*element)),
                            std::memory_order_relaxed);
  }
  return element;
}

std::int64_t Input::skip(std::int64_t count) {
  StageTimer timer(stage_);
  const std::int64_t passed = cursor_->skip(count);
  since_.skip += passed;
  count_ += passed;
  return passed;
}

std::int64_t Input::next_rows(std::span<std::int64_t> rows) {
  StageTimer timer(stage_);
  const std::int64_t got = cursor_->next_rows(rows);
  since_.skip += got;
  count_ += got;
  stage_->items.fetch_add(got, std::memory_order_relaxed);
  return got;
}

std::optional<RowsWritten> Input::next_into(std::span<Tensor> destination) {
  StageTimer timer(stage_);
  std::optional<RowsWritten> rows;
  try {
    rows = cursor_->next_into(destination);
  } catch (...) {
    std::rethrow_exception(caught_in(stage_->name()));
  }
  if (rows) {
    ++since_.skip;
    ++count_;
    stage_->items.fetch_add(1, std::memory_order_relaxed);
  }
  return rows;
}

std::shared_ptr<const PositionWriter> Input::state() const {
  auto writer = std::make_shared<PositionWriter>();
  writer->word(static_cast<std::uint64_t>(kind_of(*cursor_)));
  cursor_->save(*writer);
  return writer;
}

Position Input::position() {
  if (!cursor_->has_state()) return cursor_->position();
  // If the order varies from run to run, a count does not identify the elements.
  const std::int64_t interval =
      context_.runtime->in_order ? std::max(kLeastInterval, cursor_->state_size()) : 1;
  if (since_.base == nullptr || since_.skip >= interval) since_ = {.base = state(), .skip = 0};
  return since_;
}

void Input::save(const Position& position, PositionWriter& state) {
  state.nested(position.base);
  state.word(static_cast<std::uint64_t>(position.skip));
}

void Input::save(PositionWriter& writer) const {
  save(cursor_->has_state() ? Position{.base = state(), .skip = 0} : cursor_->position(), writer);
}

void Input::begin_rest(const std::vector<std::string>& former, FormerParts parts,
                       PositionWriter& state) {
  state.word(static_cast<std::uint64_t>(parts == FormerParts::Files ? StateKind::ReshardFiles
                                                                    : StateKind::ReshardShards));
  ReshardCursor::begin(former, state);
}

void Input::restore(PositionReader& reader) {
  if (!cursor_->has_state()) {
    cursor_->restore(reader);
    return;
  }
  PositionReader state = reader.nested();
  const auto kind = static_cast<StateKind>(state.count(2));
  if (kind != StateKind::OwnCursor) {
    const bool files = kind == StateKind::ReshardFiles;
    cursor_ = std::make_unique<ReshardCursor>(node_, context_,
                                              files ? FormerParts::Files : FormerParts::Shards);
  }
  cursor_->restore(state);
  state.expect_end();
  const std::int64_t passed = reader.count(kMostPassed);
  require(cursor_->skip(passed) == passed,
          "[data] the data set ends before the saved position, {} elements further on: it has "
          "changed since",
          passed);
}

}  // namespace lockstep
