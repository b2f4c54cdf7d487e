#include "lockstep/distribute/bucket.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/distribute/bucket_list.h"
#include "lockstep/distribute/bucket_order.h"
#include "lockstep/distribute/parameter_gathers.h"
#include "lockstep/distribute/sliced_update.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

class Writer {
 public:
  Writer(const Graph& graph, const BucketOptions& options, BucketCuts& cuts,
         ParameterGroups& groups)
      : graph_(graph),
        here_{.rank = options.rank, .size = options.ranks},
        rounding_(graph, options.rounding, options.ranks),
        uses_(graph),
        buckets_(graph, rounding_.sizes(options.sizes), cuts),
        rewriter_(graph),
        gathers_(graph, groups, here_) {
    for (const Node& node : graph.nodes()) {
      if (node.op == Op::GlobalNorm) norm_index_.emplace(&node, norm_index_.size());
      if (node.op != Op::Update || !is_sliced(node)) continue;
      if (needs_parameter_norms(node.attrs)) first_round_.emplace(&node, 2 * first_round_.size());
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = 0; i < count; ++i) {
        const ValueId sum = node.inputs[kUpdateScalars + count + i];
        const auto place = buckets_.of(sum);
        ensure(place.has_value(), "[bucket] {}: a gradient is in no bucket", node.name);
        sliced_[place->first].members.push_back(buckets_.all()[place->first][place->second]);
      }
    }
    for (auto& [b, bucket] : sliced_) {
      std::ranges::sort(bucket.members, {}, [&](const BucketMember& member) {
        return buckets_.of(member.sum())->second;
      });
      bucket.keeps_sums = std::ranges::any_of(
          bucket.members, [&](const BucketMember& member) { return is_read_whole(member); });
      const ValueId first = buckets_.parameter_value(bucket.members.front());
      bucket.has_variables = is_sliced_variable(graph_.producer(first));
      if (bucket.has_variables) add_group(bucket, groups);
    }
    gathers_.plan(options.gather_bytes);
    order_ = BucketOrder({.buckets = buckets_.all().size(),
                          .gathers = gathers_.count(),
                          .norms = sliced_.empty() ? 0 : norm_index_.size(),
                          .rounds = 2 * first_round_.size(),
                          .two_each = !sliced_.empty() || rounding_.any()});
  }

  // A node that reads a result which is communicated with later values is written after it.
  Graph run() {
    for (std::size_t b = 0; b < buckets_.all().size(); ++b) {
      std::set<ValueId>& missing = missing_.emplace_back();
      for (const BucketMember& member : buckets_.all()[b]) {
        missing.insert(member.value());
        if (is_rounded(member)) missing.insert(rounding_.weight(*member.list));
      }
      for (ValueId id : missing) waiting_[id].push_back(b);
    }
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      gathers_.write(n, rewriter_, [&] { return order_of_prefetched(); });
      if (is_bucket(node) || is_sliced_variable(node) || gathers_.replaces(node)) continue;
      if (is_collective(node)) number_[n] = number_.size();
      write_or_postpone(n);
    }
    ensure(postponed_.empty(), "a sum over ranks is waited for by what it adds up");
    rounding_.finish(rewriter_);
    return rewriter_.finish();
  }

 private:
  // What a bucket has of which every rank updates its own slices: slices of gradients and of
  // parameters before the update, and of parameters after it.
  struct SlicedBucket {
    std::vector<BucketMember> members = {};
    bool keeps_sums = false;     // whole sums are read, too: they are all-reduced
    bool has_variables = false;  // slices of parameters are variables, not cut out of whole ones
    std::vector<Slice> slices = {};
    std::vector<Value> gradients = {};
    std::vector<Value> before = {};
    std::vector<Value> after = {};
    std::size_t updated = 0;
  };

  bool is_sliced_variable(const Node& node) const {
    return node.op == Op::Variable && !node.attrs.has("begin") &&
           graph_.info(node.outputs[0]).placement.on(kDataAxis).is_flat();
  }
  // Its slots, and its parameters, where ranks have slices of those, too.
  bool is_sliced(const Node& update) const {
    return is_sliced_variable(graph_.producer(update.inputs.back())) ||
           is_sliced_variable(graph_.producer(update.inputs[kUpdateScalars]));
  }

  void add_group(const SlicedBucket& bucket, ParameterGroups& groups) const {
    ParameterGroups::Group group;
    for (const BucketMember& member : bucket.members) {
      group.push_back(graph_.producer(buckets_.parameter_value(member)).variable);
    }
    groups.add(group);
  }
  // Whether something needs the sum of a gradient that is neither its update nor a norm of sums.
  bool is_read_whole(const BucketMember& member) const {
    return std::ranges::any_of(uses_.of(member.sum()), [&](NodeId n) {
      if (n < 0) return true;
      const Node& reader = graph_.node(n);
      if (reader.op == Op::Update) return !is_sliced(reader);
      return reader.op != Op::GlobalNorm || !std::ranges::all_of(reader.inputs, [&](ValueId id) {
               return buckets_.of(id).has_value();
             });
    });
  }
  // The slice of a sum that is not kept whole; none for others.
  std::optional<Value> slice_of_sum(ValueId sum) const {
    const auto place = buckets_.of(sum);
    const auto sliced = place ? sliced_.find(place->first) : sliced_.end();
    if (sliced == sliced_.end() || sliced->second.keeps_sums) return std::nullopt;
    const auto& members = sliced->second.members;
    const auto found = std::ranges::find(members, sum, &BucketMember::sum);
    if (found == members.end()) return std::nullopt;
    return sliced->second.gradients[static_cast<std::size_t>(found - members.begin())];
  }

  // The next one of what is gathered now.
  std::size_t order_of_prefetched() {
    std::size_t next = 0;  // bucket
    while (written_.contains(next)) ++next;
    return order_.of_prefetched(next, prefetched_++);
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
      return rewriter_.knows(id) || is_sliced_variable(graph_.producer(id));
    });
    if (!known || (is_bucket_norm(node) && !has_norms(node))) {
      postponed_.push_back(n);
      return;
    }
    if (is_bucket_norm(node)) {
      write_norm_of_norms(node);
    } else if (node.op == Op::Update) {
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
    const std::vector<BucketMember>& members = buckets_.all()[b];
    write_norms(b, Reduced::No);
    write_collectives(b, members);
    write_norms(b, Reduced::Yes);
    written_.insert(b);
    for (const BucketMember& member : members) write_sums_of(member.sum());
    for (NodeId n : std::exchange(postponed_, {})) write_or_postpone(n);
  }

  // Norms of a bucket's gradients, before and after they are reduced: those that are taken bucket
  // by bucket, and those of which a rank has slices.
  enum class Reduced : bool { No, Yes };
  bool is_bucket_norm(const Node& node) const {
    if (node.op != Op::GlobalNorm) return false;
    return node.attrs.has(kByBucket) ||
           std::ranges::any_of(node.inputs, [&](ValueId id) { return is_sliced_sum(id); });
  }
  bool is_sliced_sum(ValueId id) const {
    const auto place = buckets_.of(id);
    const auto sliced = place ? sliced_.find(place->first) : sliced_.end();
    return sliced != sliced_.end() && !sliced->second.keeps_sums &&
           std::ranges::count(sliced->second.members, id, &BucketMember::sum) > 0;
  }

  bool has_norms(const Node& norm) const {
    return std::ranges::all_of(
        norm.inputs, [&](ValueId id) { return written_.contains(buckets_.that_has(id)); });
  }

  // Of a bucket that every rank has slices of, the norm of this rank's.
  struct BucketNorms {
    std::vector<Value> whole = {};
    std::vector<Value> own = {};
  };

  void write_norms(std::size_t b, Reduced reduced) {
    for (const Node& node : graph_.nodes()) {
      if (!is_bucket_norm(node)) continue;
      std::vector<Value> whole;
      std::vector<Value> own;
      for (const BucketMember& member : buckets_.all()[b]) {
        const ValueId id = reduced == Reduced::Yes ? member.sum() : member.value();
        if (std::ranges::count(node.inputs, id) == 0) continue;
        const std::optional<Value> slice = slice_of_sum(id);
        (slice ? own : whole).push_back(slice ? *slice : rewriter_.map(id));
      }
      const Graph::NameScope scope(rewriter_.target(), node.name);
      BucketNorms& norms = norms_[&node];
      if (!whole.empty()) {
        norms.whole.push_back(gradient_norm(whole));
        set_placement_as(node, norms.whole.back());
      }
      if (!own.empty()) norms.own.push_back(gradient_norm(own));
    }
  }

  void write_norm_of_norms(const Node& node) {
    BucketNorms norms = norms_.at(&node);
    const Graph::NameScope scope(rewriter_.target(), node.name);
    const auto norm_of = [](const std::vector<Value>& some) {
      return some.size() == 1 ? some.front() : global_norm(some);
    };
    if (!norms.own.empty()) {
      for (const Value& own : norms.own) {
        rewriter_.target().info(own.id()).placement = Placement::local();
      }
      std::size_t last = 0;
      for (ValueId id : node.inputs) last = std::max(last, buckets_.that_has(id));
      norms.whole.push_back(norm_over_ranks(
          norm_of(norms.own), here_,
          {.order = static_cast<std::int64_t>(order_.of_norm(last, norm_index_.at(&node)))}));
    }
    const Value norm = norm_of(norms.whole);
    set_placement_as(node, norm);
    rewriter_.set(node.outputs[0], norm);
  }

  void set_placement_as(const Node& node, Value value) {
    rewriter_.target().info(value.id()).placement = graph_.info(node.outputs[0]).placement;
  }

  void write_collectives(std::size_t b, const std::vector<BucketMember>& members) {
    const Graph::NameScope scope(rewriter_.target(), members.front().list->name);
    const auto sliced = sliced_.find(b);
    if (sliced == sliced_.end()) {
      write_all_reduces(b, members);
      return;
    }
    SlicedBucket& bucket = sliced->second;
    if (bucket.keeps_sums) {
      write_all_reduces(b, members);
    } else {
      std::vector<BucketMember> aside;
      for (const BucketMember& member : members) {
        if (!is_sliced_sum(member.sum())) aside.push_back(member);
      }
      if (!aside.empty()) write_all_reduce(aside, mapped(aside), order_.of_aside(b));
    }
    write_slices(bucket, order_.of_bucket(b));
  }

  bool is_rounded(const BucketMember& member) const {
    return rounding_.rounds(*member.list) && buckets_.parameter(member) != nullptr;
  }

  void write_all_reduces(std::size_t b, const std::vector<BucketMember>& members) {
    std::vector<BucketMember> plain;
    std::vector<BucketMember> gradients;
    for (const BucketMember& member : members) {
      (is_rounded(member) ? gradients : plain).push_back(member);
    }
    if (!plain.empty()) {
      write_all_reduce(plain, mapped(plain),
                       gradients.empty() ? order_.of_bucket(b) : order_.of_aside(b));
    }
    if (!gradients.empty()) {
      write_all_reduce(gradients, rounded_gradients(gradients), order_.of_bucket(b));
    }
  }

  std::vector<Value> mapped(const std::vector<BucketMember>& members) const {
    std::vector<Value> values;
    for (const BucketMember& member : members) values.push_back(rewriter_.map(member.value()));
    return values;
  }

  std::vector<Value> rounded_gradients(const std::vector<BucketMember>& members) {
    std::vector<VariableRef> parameters;
    for (const BucketMember& member : members) {
      parameters.push_back(graph_.producer(buckets_.parameter_value(member)).variable);
    }
    return rounding_.round(rewriter_, *members.front().list, parameters, mapped(members));
  }

  void write_all_reduce(const std::vector<BucketMember>& members, const std::vector<Value>& values,
                        std::size_t order) {
    const std::vector<Value> sums =
        rewriter_.target().add(Op::AllReduce, values, numbered(members.front().list->attrs, order));
    for (std::size_t turn = 0; turn < sums.size(); ++turn) {
      rewriter_.set(members[turn].sum(), widened(sums[turn], members[turn]));
    }
  }

  // A sum, or a slice of it, in the type of the gradient.
  Value widened(Value sum, const BucketMember& member) const {
    const bool rounded = sum.type().dtype != graph_.type(member.sum()).dtype;
    return rounded ? GradientRounding::widen(sum) : sum;
  }

  static CollectiveOptions options_for(const SlicedBucket& bucket, std::size_t order) {
    return {.group = bucket.members.front().list->attrs.text("group"),
            .order = static_cast<std::int64_t>(order)};
  }

  // This rank's slices of gradients and parameters.
  void write_slices(SlicedBucket& bucket, std::size_t order) {
    Graph& target = rewriter_.target();
    const CollectiveOptions options = options_for(bucket, order);
    std::vector<Value> values;
    std::vector<Value> parameters;
    std::vector<ValueType> types;
    for (const BucketMember& member : bucket.members) {
      values.push_back(rewriter_.map(bucket.keeps_sums ? member.sum() : member.value()));
      types.push_back(values.back().type());
    }
    if (!bucket.keeps_sums && rounding_.rounds(*bucket.members.front().list)) {
      values = rounded_gradients(bucket.members);
    }
    bucket.slices = slices_of(types, here_);
    for (std::size_t i = 0; i < bucket.members.size(); ++i) {
      const ValueId parameter = buckets_.parameter_value(bucket.members[i]);
      parameters.push_back(
          bucket.has_variables
              ? target.variable(graph_.producer(parameter).variable, bucket.slices[i])
              : rewriter_.map(parameter));
    }
    bucket.gradients = bucket.keeps_sums ? own_slice(values, here_, {.group = options.group})
                                         : reduce_scatter(values, here_, options);
    bucket.before =
        bucket.has_variables ? parameters : own_slice(parameters, here_, {.group = options.group});
    bucket.after = bucket.before;
    for (std::size_t i = 0; i < values.size(); ++i) {
      target.info(bucket.gradients[i].id()).placement = Placement::sharded_flat();
      bucket.gradients[i] = widened(bucket.gradients[i], bucket.members[i]);
      for (const Value& value : {bucket.gradients[i], bucket.before[i]}) {
        target.info(value.id()).placement = Placement::sharded_flat();
      }
    }
  }

  // One Update per bucket; one more for parameters whose gradients come from elsewhere.
  void write_updates(const Node& node) {
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    std::map<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>> parts;
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = buckets_.of(node.inputs[kUpdateScalars + count + i]);
      parts[place ? place->first : buckets_.all().size()].emplace_back(place ? place->second : i,
                                                                       i);
    }
    for (auto& [bucket, members] : parts) {
      std::ranges::sort(members);
      const Graph::NameScope scope(rewriter_.target(), node.name);
      if (is_sliced(node)) {
        std::vector<std::size_t> places;
        for (const auto& [turn, i] : members) places.push_back(i);
        write_sliced_part(node, bucket, places);
        continue;
      }
      std::vector<Value> inputs;
      for (std::size_t i = 0; i < kUpdateScalars; ++i)
        inputs.push_back(rewriter_.map(node.inputs[i]));
      Attrs attrs = node.attrs;
      attrs.set("count", static_cast<std::int64_t>(members.size()));
      for (std::size_t list = kUpdateScalars; list < node.inputs.size(); list += count) {
        for (const auto& [turn, i] : members)
          inputs.push_back(rewriter_.map(node.inputs[list + i]));
      }
      rewriter_.target().add(Op::Update, inputs, std::move(attrs));
    }
  }

  // The update of those of a node's parameters that are in a bucket.
  void write_sliced_part(const Node& node, std::size_t b, std::span<const std::size_t> places) {
    Graph& target = rewriter_.target();
    SlicedBucket& bucket = sliced_.at(b);
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    SlicedUpdate update{.inputs = {.rate = rewriter_.map(node.inputs[0]),
                                   .scale = rewriter_.map(node.inputs[1]),
                                   .step = rewriter_.map(node.inputs[2]),
                                   .parameters = {},
                                   .gradients = {},
                                   .slots = {}},
                        .attrs = node.attrs,
                        .gradient_norms = {},
                        .trust_norms = {}};
    if (const auto first = first_round_.find(&node); first != first_round_.end()) {
      update.gradient_norms = options_for(bucket, order_.of_round(b, first->second));
      update.trust_norms = options_for(bucket, order_.of_round(b, first->second + 1));
    }
    update.inputs.slots.resize(static_cast<std::size_t>(node.attrs.integer("slots")));
    std::vector<std::size_t> turns;  // positions in the list of the bucket's gradients
    for (std::size_t i : places) {
      const ValueId sum = node.inputs[kUpdateScalars + count + i];
      const auto found = std::ranges::find(bucket.members, sum, &BucketMember::sum);
      turns.push_back(static_cast<std::size_t>(found - bucket.members.begin()));
      update.inputs.parameters.push_back(bucket.before[turns.back()]);
      update.inputs.gradients.push_back(bucket.gradients[turns.back()]);
      for (std::size_t s = 0; s < update.inputs.slots.size(); ++s) {
        const Node& slot = graph_.producer(node.inputs[kUpdateScalars + (2 + s) * count + i]);
        update.inputs.slots[s].push_back(
            target.variable(slot.variable, bucket.slices[turns.back()]));
      }
    }
    if (!bucket.has_variables) update.attrs.set(kOfSlices, true);
    const std::vector<Value> after = write_sliced_update(update);
    if (bucket.has_variables) return;
    for (std::size_t m = 0; m < turns.size(); ++m) {
      target.info(after[m].id()).placement = Placement::sharded_flat();
      bucket.after[turns[m]] = after[m];
    }
    bucket.updated += turns.size();
    if (bucket.updated == bucket.members.size()) write_all_gather(b, bucket);
  }

  void write_all_gather(std::size_t b, const SlicedBucket& bucket) {
    std::vector<Shape> shapes;
    for (const BucketMember& member : bucket.members) {
      shapes.push_back(buckets_.parameter(member)->shape);
    }
    const std::vector<Value> whole =
        all_gather(bucket.after, shapes, here_, options_for(bucket, order_.of_gather(b)));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      assign(graph_.producer(buckets_.parameter_value(bucket.members[i])).variable, whole[i]);
    }
  }

  const Graph& graph_;
  RankInGroup here_;
  GradientRounding rounding_;
  Uses uses_;
  GradientBuckets buckets_;
  Rewriter rewriter_;
  ParameterGathers gathers_;
  BucketOrder order_;
  std::map<const Node*, std::size_t> norm_index_;   // among the norms of the graph
  std::size_t prefetched_ = 0;                      // gathers that are written
  std::map<const Node*, std::size_t> first_round_;  // of norms of parameters, by update
  std::map<std::size_t, SlicedBucket> sliced_;      // by bucket
  std::set<std::size_t> written_;                   // buckets whose results are written
  std::vector<std::set<ValueId>> missing_;          // values of a bucket that are still missing
  std::map<ValueId, std::vector<std::size_t>> waiting_;  // buckets, by what they wait for
  std::vector<NodeId> postponed_;             // nodes that read results that are not written yet
  std::map<NodeId, std::size_t> number_;      // of collectives that are no buckets
  std::map<const Node*, BucketNorms> norms_;  // of the buckets that are written
};

}  // namespace

void BucketPass::run(Graph& graph) {
  ensure(options_.ranks > 0 && options_.rank >= 0 && options_.rank < options_.ranks,
         "a step is cut into buckets for rank {} of {}", options_.rank, options_.ranks);
  expect_overflow_is_noticed(graph, options_.rounding);
  if (options_.ranks == 1) return;
  BucketCuts own;
  ParameterGroups own_groups;
  graph = Writer(graph, options_, options_.cuts != nullptr ? *options_.cuts : own,
                 options_.groups != nullptr ? *options_.groups : own_groups)
              .run();
}

}  // namespace lockstep
