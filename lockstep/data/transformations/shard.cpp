// Every count-th element. Those of the other shards are skipped without producing them.
#include "lockstep/data/transformations/shard.h"

#include <algorithm>
#include <array>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class ShardCursor final : public Cursor {
 public:
  ShardCursor(NodePtr input, const Context& context, std::int64_t count, std::int64_t index)
      : count_(count), to_pass_(index), input_(std::move(input), context) {}

  std::optional<Element> next() override {
    if (!pass_others()) return std::nullopt;
    std::optional<Element> element = input_.next();
    if (element) to_pass_ = count_ - 1;
    return element;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t passed = 0;
    while (passed < count) {
      const std::int64_t most = kMostAtOnce / count_ + 1;
      const std::int64_t wanted = std::min(count - passed, most);
      const std::int64_t got = passed_over(input_.skip(up_to_last(wanted)));
      passed += got;
      if (got < wanted) break;
    }
    return passed;
  }

  const Table* table() const override { return input_.table(); }

  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    std::array<std::int64_t, 2048> all;
    std::int64_t done = 0;
    while (done < std::ssize(rows)) {
      if (to_pass_ >= std::ssize(all) && !pass_others()) break;
      const std::int64_t most = (std::ssize(all) - to_pass_ - 1) / count_ + 1;
      const std::int64_t wanted = std::min(std::ssize(rows) - done, most);
      const std::int64_t first = to_pass_;
      const std::int64_t got = passed_over(
          input_.next_rows(std::span(all).first(static_cast<std::size_t>(up_to_last(wanted)))));
      for (std::int64_t i = 0; i < got; ++i) {
        rows[static_cast<std::size_t>(done + i)] =
            all[static_cast<std::size_t>(first + i * count_)];
      }
      done += got;
      if (got < wanted) break;
    }
    return done;
  }

  void save(PositionWriter& state) const override {
    state.word(static_cast<std::uint64_t>(to_pass_));
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    to_pass_ = state.count(count_ - 1);
    input_.restore(state);
  }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  static constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 40;

  // False at the end.
  bool pass_others() {
    to_pass_ -= input_.skip(to_pass_);
    return to_pass_ == 0;
  }

  // How many elements to read from the input to get our next `wanted` ones.
  std::int64_t up_to_last(std::int64_t wanted) const {
    return to_pass_ + (wanted - 1) * count_ + 1;
  }

  // Accounts for `elements` read from the input; returns how many of them were ours.
  std::int64_t passed_over(std::int64_t elements) {
    if (elements <= to_pass_) {
      to_pass_ -= elements;
      return 0;
    }
    const std::int64_t after_first = elements - to_pass_ - 1;
    to_pass_ = count_ - 1 - after_first % count_;
    return 1 + after_first / count_;
  }

  std::int64_t count_;
  std::int64_t to_pass_;  // elements of other shards before our next one
  Input input_;
};

class ShardNode final : public DatasetNode {
 public:
  ShardNode(NodePtr input, std::int64_t count, std::int64_t index)
      : input_(std::move(input)), count_(count), index_(index) {}

  bool of_the_iterator() const { return count_ == 0; }

  std::string name() const override {
    return of_the_iterator() ? "shard" : fmt::format("shard({} of {})", index_, count_);
  }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    if (input <= 0) return input;
    if (of_the_iterator()) return kUnknown;  // the shard is not known yet
    return input > index_ ? (input - index_ - 1) / count_ + 1 : 0;
  }
  std::string signature() const override {
    if (of_the_iterator()) return input_->signature() + ".shard";
    return fmt::format("{}.shard({} of {})", input_->signature(), index_, count_);
  }
  ShareRules share_rules() const override { return {.dealt = ShareRules::Dealt::Others}; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    if (of_the_iterator()) {
      return std::make_unique<ShardCursor>(input_, context, context.shards, context.shard);
    }
    return std::make_unique<ShardCursor>(input_, context, count_, index_);
  }

 private:
  NodePtr input_;
  std::int64_t count_;
  std::int64_t index_;
};

}  // namespace

bool depends_on_shard(const DatasetNode& node) {
  const auto* shard = dynamic_cast<const ShardNode*>(&node);
  if (shard != nullptr && shard->of_the_iterator()) return true;
  return std::ranges::any_of(node.inputs(),
                             [](const NodePtr& input) { return depends_on_shard(*input); });
}

std::string cached_part(const Context& context, bool per_shard) {
  std::string part;
  if (per_shard && context.shards > 1) {
    part += fmt::format(".{}-of-{}", context.shard, context.shards);
  }
  if (context.files.count > 1) {
    part += fmt::format(".files-{}-of-{}", context.files.index, context.files.count);
  }
  if (context.share) {  // the cached batches are of its size
    part += fmt::format(".ranks-{}-to-{}-of-{}", context.share->first_rank,
                        context.share->end_rank - 1, context.share->ranks);
  }
  return part;
}

NodePtr make_shard(NodePtr input, std::int64_t count, std::int64_t index) {
  require(count >= 0, "[shard] the number of shards must be at least 1, not {}", count);
  require(count == 0 || (index >= 0 && index < count),
          "[shard] there is no shard {} of {}: shards are numbered from 0", index, count);
  return std::make_shared<ShardNode>(std::move(input), count, index);
}

}  // namespace lockstep
