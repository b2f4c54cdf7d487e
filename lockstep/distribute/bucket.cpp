#include "lockstep/distribute/bucket.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

constexpr std::size_t kScalars = 3;  // inputs of an Update before its parameters
// Gradients with a multiple of this many elements come first in a bucket, so that those after them
// start on whole vectors and cache lines.
constexpr std::int64_t kWholeVectors = 16;

// A value that is reduced over the ranks: one of a list.
struct Member {
  const Node* list = nullptr;
  std::size_t place = 0;

  ValueId value() const { return list->inputs[place]; }
  ValueId sum() const { return list->outputs[place]; }
};

// Members that are communicated together.
struct Bucket {
  std::vector<Member> members;
};

// The lists of a graph, cut into buckets. A list of gradients also takes the values that are marked
// `aside`, each in the first bucket that is finished no earlier than the value.
class Buckets {
 public:
  Buckets(const Graph& graph, BucketSizes sizes, BucketCuts& cuts) : graph_(graph) {
    find_parameters();
    find_dependents();
    const std::map<const Node*, const Node*> carried = find_carried();
    // Whatever follows from collectives is numbered after them.
    for (const bool independent : {true, false}) {
      for (const Node& node : graph.nodes()) {
        if (!is_bucket(node) || is_independent(node) != independent) continue;
        if (!carried.contains(&node)) add(node, carried, sizes, cuts);
      }
    }
  }

  const std::vector<Bucket>& all() const { return buckets_; }
  // The bucket that a value of the graph comes out of, and its position there; none for others.
  std::optional<std::pair<std::size_t, std::size_t>> of(ValueId sum) const {
    const auto found = place_.find(sum);
    return found == place_.end() ? std::nullopt : std::optional(found->second);
  }
  // The parameter whose gradient a member is; null: none.
  const Variable* parameter(const Member& member) const {
    const auto found = parameter_of_.find(member.sum());
    return found == parameter_of_.end() ? nullptr : found->second;
  }

 private:
  static std::vector<Member> members_of(const Node& list) {
    std::vector<Member> members;
    for (std::size_t i = 0; i < list.inputs.size(); ++i) members.push_back({&list, i});
    return members;
  }

  void find_parameters() {
    for (const Node& node : graph_.nodes()) {
      if (node.op != Op::Update) continue;
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = kScalars; i < kScalars + count; ++i) {
        parameter_of_[node.inputs[i + count]] = graph_.producer(node.inputs[i]).variable.get();
      }
    }
  }

  // Values that depend on the results of a list.
  void find_dependents() {
    for (const Node& node : graph_.nodes()) {
      const bool follows = is_bucket(node) || std::ranges::any_of(node.inputs, [&](ValueId id) {
                             return dependents_.contains(id);
                           });
      if (follows) dependents_.insert(node.outputs.begin(), node.outputs.end());
    }
  }

  bool is_independent(const Node& list) const {
    return std::ranges::none_of(list.inputs, [&](ValueId id) { return dependents_.contains(id); });
  }

  // The list with which each value that is marked `aside` is communicated.
  std::map<const Node*, const Node*> find_carried() const {
    const auto dtype = [&](const Node& list) { return graph_.type(list.inputs[0]).dtype; };
    std::map<const Node*, const Node*> carried;
    for (const Node& list : graph_.nodes()) {
      if (!is_bucket(list) || is_aside(list) || !is_independent(list)) continue;
      for (const Node& other : graph_.nodes()) {
        const bool joins = is_aside(other) && is_independent(other) && dtype(other) == dtype(list);
        if (joins) carried.emplace(&other, &list);
      }
    }
    return carried;
  }

  void add(const Node& node, const std::map<const Node*, const Node*>& carried, BucketSizes sizes,
           BucketCuts& cuts) {
    std::vector<Member> list = members_of(node);
    const std::size_t own = list.size();
    for (const Node& other : graph_.nodes()) {
      const auto found = carried.find(&other);
      if (found == carried.end() || found->second != &node) continue;
      std::ranges::copy(members_of(other), std::back_inserter(list));
    }
    BucketCuts::Names names;
    for (const Member& member : list) {
      const Variable* const of = parameter(member);
      names.push_back(of == nullptr ? "" : of->name);
    }
    const BucketCuts::Members* known = cuts.find(names);
    if (known == nullptr) known = &cuts.remember(std::move(names), cut(list, own, sizes));
    for (const std::vector<std::size_t>& some : *known) {
      Bucket bucket;
      for (std::size_t i : some) {
        place_[list[i].sum()] = {buckets_.size(), bucket.members.size()};
        bucket.members.push_back(list[i]);
      }
      buckets_.push_back(std::move(bucket));
    }
  }

  // The first `own` members of a list by size, in the order in which they are finished; then the
  // others. In a bucket, gradients come before other values, so that those of an update are
  // contiguous.
  BucketCuts::Members cut(const std::vector<Member>& list, std::size_t own,
                          BucketSizes sizes) const {
    std::vector<std::size_t> order(own);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return finished(list[i]); });
    std::vector<std::size_t> bytes;
    for (std::size_t i : order) bytes.push_back(graph_.bytes(list[i].value()));
    BucketCuts::Members buckets;
    std::vector<NodeId> ends;
    std::size_t begin = 0;
    for (std::size_t end : cut_into_buckets(bytes, sizes)) {
      std::vector<std::size_t>& members =
          buckets.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                               order.begin() + static_cast<std::ptrdiff_t>(end));
      ends.push_back(finished(list[members.back()]));
      in_whole_vectors_first(list, members);
      begin = end;
    }
    for (std::size_t i = own; i < list.size(); ++i) {
      const auto first = std::ranges::lower_bound(ends, finished(list[i]));
      buckets[static_cast<std::size_t>(std::min(first - ends.begin(), std::ssize(ends) - 1))]
          .push_back(i);
    }
    return buckets;
  }

  void in_whole_vectors_first(const std::vector<Member>& list,
                              std::vector<std::size_t>& members) const {
    std::stable_partition(members.begin(), members.end(), [&](std::size_t i) {
      return graph_.type(list[i].value()).shape.elements() % kWholeVectors == 0;
    });
  }

  NodeId finished(const Member& member) const { return graph_.info(member.value()).producer; }

  const Graph& graph_;
  std::map<ValueId, const Variable*> parameter_of_;  // by its reduced gradient
  std::set<ValueId> dependents_;
  std::vector<Bucket> buckets_;
  std::map<ValueId, std::pair<std::size_t, std::size_t>> place_;
};

class Writer {
 public:
  Writer(const Graph& graph, const BucketOptions& options, BucketCuts& cuts)
      : graph_(graph),
        here_{.rank = options.rank, .size = options.ranks},
        buckets_(graph, options.sizes, cuts),
        rewriter_(graph) {
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::Update || !has_sliced_slots(node)) continue;
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = 0; i < count; ++i) {
        const auto place = buckets_.of(node.inputs[kScalars + count + i]);
        ensure(place.has_value(), "[bucket] {}: a gradient is in no bucket", node.name);
        sliced_[place->first];
      }
    }
  }

  // A node that reads a result which is communicated with later values is written after it.
  Graph run() {
    for (std::size_t b = 0; b < buckets_.all().size(); ++b) {
      std::set<ValueId>& missing = missing_.emplace_back();
      for (const Member& member : buckets_.all()[b].members) missing.insert(member.value());
      for (ValueId id : missing) waiting_[id].push_back(b);
    }
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (is_bucket(node) || is_sliced_slot(node)) continue;
      if (is_collective(node)) number_[n] = number_.size();
      write_or_postpone(n);
    }
    ensure(postponed_.empty(), "a sum over ranks is waited for by what it adds up");
    return rewriter_.finish();
  }

 private:
  // A bucket of which every rank updates its own slices: slices of gradients and of parameters
  // before the update, and of parameters after it.
  struct SlicedBucket {
    std::vector<Member> members;
    std::vector<Slice> slices;
    std::vector<Value> gradients;
    std::vector<Value> before;
    std::vector<Value> after;
    std::size_t updated = 0;
  };

  bool is_sliced_slot(const Node& node) const {
    return node.op == Op::Variable && !node.attrs.has("begin") &&
           graph_.info(node.outputs[0]).placement.on(kDataAxis).is_flat();
  }
  bool has_sliced_slots(const Node& update) const {
    return is_sliced_slot(graph_.producer(update.inputs.back()));
  }

  static Attrs numbered(Attrs attrs, std::size_t order) {
    attrs.set("order", static_cast<std::int64_t>(order));
    return attrs;
  }

  void write_or_postpone(NodeId n) {
    const Node& node = graph_.node(n);
    const bool known = std::ranges::all_of(node.inputs, [&](ValueId id) {
      const auto place = buckets_.of(id);
      if (place && sliced_.contains(place->first)) return written_.contains(place->first);
      return rewriter_.knows(id) || is_sliced_slot(graph_.producer(id));
    });
    if (!known) {
      postponed_.push_back(n);
      return;
    }
    if (node.op == Op::Update) {
      write_updates(node);
    } else if (is_collective(node)) {
      rewriter_.copy_as(node, rewriter_.map(node.inputs), numbered(node.attrs, number_.at(n)));
    } else {
      rewriter_.copy(node);
    }
    for (ValueId id : node.outputs) write_sums_of(id);
  }

  // Writes the collectives of the buckets for which this value was the last.
  void write_sums_of(ValueId id) {
    const auto waiting = waiting_.find(id);
    if (waiting == waiting_.end()) return;
    for (std::size_t b : waiting->second) {
      missing_[b].erase(id);
      if (missing_[b].empty()) write_sums(b);
    }
  }

  void write_sums(std::size_t b) {
    const std::vector<Member>& members = buckets_.all()[b].members;
    write_collectives(b, members);
    written_.insert(b);
    for (const Member& member : members) write_sums_of(member.sum());
    for (NodeId n : std::exchange(postponed_, {})) write_or_postpone(n);
  }

  void write_collectives(std::size_t b, const std::vector<Member>& members) {
    const Graph::NameScope scope(rewriter_.target(), members.front().list->name);
    const auto sliced = sliced_.find(b);
    if (sliced == sliced_.end()) {
      write_all_reduce(members, sliced_.empty() ? b : 2 * b + 1);
      return;
    }
    std::vector<Member> aside;
    for (const Member& member : members) {
      const bool gradient = buckets_.parameter(member) != nullptr;
      (gradient ? sliced->second.members : aside).push_back(member);
    }
    if (!aside.empty()) write_all_reduce(aside, 2 * b);
    write_reduce_scatter(sliced->second, 2 * b + 1);
  }

  void write_all_reduce(const std::vector<Member>& members, std::size_t order) {
    std::vector<Value> values;
    for (const Member& member : members) values.push_back(rewriter_.map(member.value()));
    const std::vector<Value> sums =
        rewriter_.target().add(Op::AllReduce, values, numbered(members.front().list->attrs, order));
    for (std::size_t turn = 0; turn < sums.size(); ++turn) {
      rewriter_.set(members[turn].sum(), sums[turn]);
    }
  }

  static CollectiveOptions options_for(const SlicedBucket& bucket, std::size_t order) {
    return {.group = bucket.members.front().list->attrs.text("group"),
            .order = static_cast<std::int64_t>(order)};
  }

  void write_reduce_scatter(SlicedBucket& bucket, std::size_t order) {
    Graph& target = rewriter_.target();
    const CollectiveOptions options = options_for(bucket, order);
    std::vector<Value> values;
    std::vector<Value> parameters;
    std::vector<ValueType> types;
    for (const Member& member : bucket.members) {
      values.push_back(rewriter_.map(member.value()));
      parameters.push_back(rewriter_.map(parameter_value(member)));
      types.push_back(values.back().type());
    }
    bucket.slices = slices_of(types, here_);
    bucket.gradients = reduce_scatter(values, here_, options);
    bucket.before = own_slice(parameters, here_, {.group = options.group});
    bucket.after = bucket.before;
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (const Value& value : {bucket.gradients[i], bucket.before[i]}) {
        target.info(value.id()).placement = Placement::sharded_flat();
      }
    }
  }

  // The value, in the source, of the parameter whose gradient a member is.
  ValueId parameter_value(const Member& member) const {
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::Variable && node.variable.get() == buckets_.parameter(member)) {
        return node.outputs[0];
      }
    }
    fail<InternalError>("[bucket] a gradient has no parameter");
  }

  // One Update per bucket; one more for parameters whose gradients come from elsewhere.
  void write_updates(const Node& node) {
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    std::map<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>> parts;
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = buckets_.of(node.inputs[kScalars + count + i]);
      parts[place ? place->first : buckets_.all().size()].emplace_back(place ? place->second : i,
                                                                       i);
    }
    for (auto& [bucket, members] : parts) {
      std::ranges::sort(members);
      std::vector<Value> inputs;
      for (std::size_t i = 0; i < kScalars; ++i) inputs.push_back(rewriter_.map(node.inputs[i]));
      Attrs attrs = node.attrs;
      attrs.set("count", static_cast<std::int64_t>(members.size()));
      const Graph::NameScope scope(rewriter_.target(), node.name);
      const auto sliced = sliced_.find(bucket);
      if (sliced != sliced_.end()) {
        write_sliced_update(node, bucket, sliced->second, members, std::move(inputs),
                            std::move(attrs));
        continue;
      }
      for (std::size_t list = kScalars; list < node.inputs.size(); list += count) {
        for (const auto& [turn, i] : members)
          inputs.push_back(rewriter_.map(node.inputs[list + i]));
      }
      rewriter_.target().add(Op::Update, inputs, std::move(attrs));
    }
  }

  void write_sliced_update(const Node& node, std::size_t b, SlicedBucket& bucket,
                           const std::vector<std::pair<std::size_t, std::size_t>>& members,
                           std::vector<Value> inputs, Attrs attrs) {
    Graph& target = rewriter_.target();
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    std::vector<std::size_t> turns;  // positions in the list of the bucket's gradients
    for (const auto& [turn, i] : members) {
      const ValueId sum = node.inputs[kScalars + count + i];
      const auto found = std::ranges::find(bucket.members, sum, &Member::sum);
      turns.push_back(static_cast<std::size_t>(found - bucket.members.begin()));
    }
    for (std::size_t turn : turns) inputs.push_back(bucket.before[turn]);
    for (std::size_t turn : turns) inputs.push_back(bucket.gradients[turn]);
    for (std::size_t list = kScalars + 2 * count; list < node.inputs.size(); list += count) {
      for (std::size_t m = 0; m < members.size(); ++m) {
        const Node& slot = graph_.producer(node.inputs[list + members[m].second]);
        inputs.push_back(target.variable(slot.variable, bucket.slices[turns[m]]));
      }
    }
    attrs.set(kOfSlices, true);
    const std::vector<Value> after = target.add(Op::Update, inputs, std::move(attrs));
    for (std::size_t m = 0; m < turns.size(); ++m) {
      target.info(after[m].id()).placement = Placement::sharded_flat();
      bucket.after[turns[m]] = after[m];
    }
    bucket.updated += turns.size();
    if (bucket.updated == bucket.members.size()) write_all_gather(b, bucket);
  }

  void write_all_gather(std::size_t b, const SlicedBucket& bucket) {
    std::vector<Shape> shapes;
    for (const Member& member : bucket.members) {
      shapes.push_back(buckets_.parameter(member)->shape);
    }
    const std::vector<Value> whole =
        all_gather(bucket.after, shapes, here_, options_for(bucket, 2 * buckets_.all().size() + b));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      assign(graph_.producer(parameter_value(bucket.members[i])).variable, whole[i]);
    }
  }

  const Graph& graph_;
  RankInGroup here_;
  Buckets buckets_;
  Rewriter rewriter_;
  std::map<std::size_t, SlicedBucket> sliced_;  // by bucket
  std::set<std::size_t> written_;               // buckets whose results are written
  std::vector<std::set<ValueId>> missing_;      // values of a bucket that are still missing
  std::map<ValueId, std::vector<std::size_t>> waiting_;  // buckets, by what they wait for
  std::vector<NodeId> postponed_;         // nodes that read results that are not written yet
  std::map<NodeId, std::size_t> number_;  // of collectives that are no buckets
};

}  // namespace

void BucketPass::run(Graph& graph) {
  ensure(options_.ranks > 0 && options_.rank >= 0 && options_.rank < options_.ranks,
         "a step is cut into buckets for rank {} of {}", options_.rank, options_.ranks);
  if (options_.ranks == 1) return;
  BucketCuts own;
  graph = Writer(graph, options_, options_.cuts != nullptr ? *options_.cuts : own).run();
}

}  // namespace lockstep
