#include "lockstep/data/pipeline/reshard_cursor.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostShards = 1 << 20;

}  // namespace

ReshardCursor::ReshardCursor(NodePtr node, const Context& context, FormerParts former)
    : node_(std::move(node)), context_(context), former_parts_(former) {}

template <class Use>
bool ReshardCursor::advance(Use use) {
  const ShardIndex own = context_.own_shard();
  while (!std::ranges::all_of(ended_, [](bool ended) { return ended; })) {
    const std::size_t at = turn_;
    turn_ = (turn_ + 1) % former_.size();
    if (ended_[at]) continue;
    const bool mine = dealt_ % own.count == own.index;
    const bool there = mine ? use(*former_[at]) : former_[at]->skip(1) == 1;
    if (!there) {
      ended_[at] = true;
      continue;
    }
    ++dealt_;
    if (mine) return true;
  }
  return false;
}

std::optional<Element> ReshardCursor::next() {
  std::optional<Element> element;
  advance([&](Input& input) { return (element = input.next()).has_value(); });
  return element;
}

std::int64_t ReshardCursor::skip(std::int64_t count) {
  std::int64_t passed = 0;
  while (passed < count && advance([](Input& input) { return input.skip(1) == 1; })) ++passed;
  return passed;
}

void ReshardCursor::save(PositionWriter& state) const {
  state.word(former_.size());
  for (const std::unique_ptr<Input>& input : former_) {
    auto inner = std::make_shared<PositionWriter>();
    input->save(*inner);
    state.nested(std::move(inner));
  }
  for (const bool ended : ended_) state.word(ended ? 1 : 0);
  state.word(turn_);
  state.word(static_cast<std::uint64_t>(dealt_));
}

void ReshardCursor::begin(const std::vector<std::string>& former_inputs, PositionWriter& state) {
  state.word(former_inputs.size());
  for (const std::string& input : former_inputs) state.text(input);
  for (std::size_t i = 0; i < former_inputs.size(); ++i) state.word(0);
  state.word(0);
  state.word(0);
}

void ReshardCursor::restore(PositionReader& state) {
  const std::int64_t shards = state.count(kMostShards);
  require(shards > 0, "[data] the saved position is damaged: it continues 0 shards");
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    Context context = context_;
    const bool files = former_parts_ == FormerParts::Files;
    context.files = files ? ShardIndex{.index = shard, .count = shards} : ShardIndex{};
    context.shard = files ? 0 : shard;
    context.shards = files ? 1 : shards;
    former_.push_back(std::make_unique<Input>(node_, context));
    PositionReader inner = state.nested();
    former_.back()->restore(inner);
    inner.expect_end();
  }
  for (std::int64_t shard = 0; shard < shards; ++shard) ended_.push_back(state.count(1) == 1);
  turn_ = static_cast<std::size_t>(state.count(shards - 1));
  dealt_ = state.count(std::numeric_limits<std::int64_t>::max());
}

}  // namespace lockstep
