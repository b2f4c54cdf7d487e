// The rest of an epoch that n shards began, distributed over m. It starts from the saved positions
// of all n shards. Their remaining elements are taken in turn, one from each, and assigned to the m
// new shards round-robin. Each of the m runs through all of them and skips those of the others, so
// that exactly one returns each element.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/pipeline/node.h"

namespace lockstep {

class ReshardCursor final : public Cursor {
 public:
  // For context.own_shard(): a shard, or a worker among which files are dealt out.
  ReshardCursor(NodePtr node, const Context& context, FormerParts former);

  FormerParts former() const { return former_parts_; }

  std::optional<Element> next() override;
  std::int64_t skip(std::int64_t count) override;
  void save(PositionWriter& state) const override;
  void restore(PositionReader& state) override;

  // Writes the state from which every new shard starts, given the positions of all former shards.
  static void begin(const std::vector<std::string>& former_inputs, PositionWriter& state);

 private:
  // Skips to the next element of this shard and calls `use` with its input; false at the end.
  template <class Use>
  bool advance(Use use);

  NodePtr node_;
  Context context_;
  FormerParts former_parts_;
  std::vector<std::unique_ptr<Input>> former_;
  std::vector<bool> ended_;
  std::size_t turn_ = 0;    // the former shard whose element is next
  std::int64_t dealt_ = 0;  // elements assigned so far
};

}  // namespace lockstep
