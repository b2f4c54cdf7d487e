// The rest of an epoch that n shards began, dealt out to m: a saved position of every one of the n
// is the beginning. The elements that each of them still had to give are taken in turn, one of
// each, and go round among the m in that order. Each of the m runs through all of it and passes
// over what goes to the others; every element is therefore seen by exactly one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/node.h"

namespace lockstep {

class RestCursor final : public Cursor {
 public:
  // Of the context's shard, of as many shards as the context says.
  RestCursor(NodePtr node, const Context& context);

  std::optional<Element> next() override;
  std::int64_t skip(std::int64_t count) override;
  void save(PositionWriter& state) const override;
  void restore(PositionReader& state) override;

  // The state in which shard `shard` of any number begins, from the states of all former shards.
  static void begin(const std::vector<std::string>& former_inputs, PositionWriter& state);

 private:
  // Goes to the next element of this shard; false at the end.
  template <class Use>
  bool advance(Use use);

  NodePtr node_;
  Context context_;
  std::vector<std::unique_ptr<Input>> former_;
  std::vector<bool> ended_;
  std::size_t turn_ = 0;    // whose element is next
  std::int64_t dealt_ = 0;  // elements gone round so far
};

}  // namespace lockstep
