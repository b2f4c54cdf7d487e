#include "lockstep/graph/ops/collective.h"

#include <algorithm>

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/rules.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

constexpr const char* kGroup = "group";
constexpr const char* kAfter = "after";
constexpr const char* kBucket = "bucket";
constexpr const char* kAside = "aside";
constexpr const char* kPrefetched = "prefetched";
constexpr const char* kReplicatedAfter = "replicated";

Attrs attrs_of(const CollectiveOptions& options) {
  Attrs attrs{{kGroup, options.group}, {kBucket, options.order.has_value()}};
  if (options.order) attrs.set("order", *options.order);
  if (options.prefetched) attrs.set(kPrefetched, true);
  if (options.after == After::ReplicatedComputation) attrs.set(kAfter, kReplicatedAfter);
  return attrs;
}

Attrs attrs_of(const CollectiveOptions& options, RankInGroup here) {
  Attrs attrs = attrs_of(options);
  attrs.set("rank", static_cast<std::int64_t>(here.rank));
  attrs.set("size", static_cast<std::int64_t>(here.size));
  return attrs;
}

CollectiveOptions options_of(const Attrs& attrs) {
  const bool replicated = attrs.text_or_empty(kAfter) == kReplicatedAfter;
  return {.group = attrs.text(kGroup),
          .after = replicated ? After::ReplicatedComputation : After::OwnComputation,
          .order = {}};
}

void expect_group(const OpCall& call) {
  require(!call.attrs.text_or_empty(kGroup).empty(), "the group of ranks has no name");
}

void expect_rank(const OpCall& call) {
  const RankInGroup here = rank_in_group(call.attrs);
  require(here.size > 0 && here.rank >= 0 && here.rank < here.size,
          "there is no rank {} in a group of {}", here.rank, here.size);
}

void expect_one_dtype(const OpCall& call) {
  require(!call.inputs.empty(), "there is nothing to communicate");
  for (std::size_t i = 1; i < call.inputs.size(); ++i) {
    require(call.dtype(i) == call.dtype(0),
            "value {} is {}, value 0 is {}: all must be of one type", i, call.inputs[i].str(),
            call.inputs[0].str());
  }
}

std::vector<ValueType> infer_same(const OpCall& call) {
  expect_group(call);
  expect_one_dtype(call);
  return {call.inputs.begin(), call.inputs.end()};
}

std::vector<ValueType> infer_slices(const OpCall& call) {
  expect_group(call);
  expect_rank(call);
  expect_one_dtype(call);
  std::vector<ValueType> slices;
  for (const Slice& slice : slices_of(call.inputs, rank_in_group(call.attrs))) {
    slices.push_back({call.dtype(0), {static_cast<std::int64_t>(slice.size())}});
  }
  return slices;
}

// Shapes as numbers: for each its rank, then its extents.
Ints encode(std::span<const Shape> shapes) {
  Ints numbers;
  for (const Shape& shape : shapes) {
    numbers.push_back(shape.rank());
    numbers.insert(numbers.end(), shape.dims().begin(), shape.dims().end());
  }
  return numbers;
}

std::vector<ValueType> whole_types(DType dtype, const Ints& numbers) {
  std::vector<ValueType> types;
  for (std::size_t i = 0; i < numbers.size();) {
    const auto rank = static_cast<std::size_t>(numbers[i++]);
    ensure(i + rank <= numbers.size(), "[all_gather] shapes end in the middle of one");
    types.push_back({dtype, Shape(std::vector<std::int64_t>(
                                numbers.begin() + static_cast<std::ptrdiff_t>(i),
                                numbers.begin() + static_cast<std::ptrdiff_t>(i + rank)))});
    i += rank;
  }
  return types;
}

std::vector<ValueType> infer_all_gather(const OpCall& call) {
  expect_group(call);
  expect_rank(call);
  expect_one_dtype(call);
  std::vector<ValueType> whole = whole_types(call.dtype(0), call.attrs.ints("shapes"));
  require(whole.size() == call.inputs.size(), "there are {} slices for {} shapes",
          call.inputs.size(), whole.size());
  const std::vector<Slice> slices = slices_of(whole, rank_in_group(call.attrs));
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const ValueType expected{call.dtype(0), {static_cast<std::int64_t>(slices[i].size())}};
    require(call.inputs[i] == expected, "this rank's slice of value {}, which is {}, is {}, not {}",
            i, whole[i].str(), expected.str(), call.inputs[i].str());
  }
  return whole;
}

std::vector<ValueType> infer_broadcast(const OpCall& call) {
  expect_group(call);
  require(call.inputs.size() == 1, "takes 1 input, not {}", call.inputs.size());
  require(call.attrs.integer("root") >= 0, "there is no rank {}", call.attrs.integer("root"));
  return {call.inputs[0]};
}

// The gradients of the outputs, zeros where nothing depends on one.
std::vector<Value> all_grads(const GradCall& call) {
  std::vector<Value> grads(call.grads.begin(), call.grads.end());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) continue;
    const ValueType type = call.outputs[i].type();
    grads[i] = broadcast_to(call.graph.scalar(0, type.dtype), type.shape);
  }
  return grads;
}

// Sums of the gradients that exist.
std::vector<Value> sums_of_grads(const GradCall& call, const CollectiveOptions& options) {
  std::vector<Value> defined;
  for (const Value& grad : call.grads) {
    if (grad.defined()) defined.push_back(grad);
  }
  std::vector<Value> grads(call.inputs.size());
  if (defined.empty()) return grads;
  const std::vector<Value> sums = all_reduce(defined, options);
  for (std::size_t i = 0, next = 0; i < grads.size(); ++i) {
    if (call.grads[i].defined()) grads[i] = sums[next++];
  }
  return grads;
}

std::vector<Value> gradient_all_reduce(const GradCall& call) {
  const CollectiveOptions options = options_of(call.attrs);
  if (options.after == After::ReplicatedComputation) {
    return {call.grads.begin(), call.grads.end()};
  }
  return sums_of_grads(call, options);
}

std::vector<Value> gradient_for_each_rank(const GradCall& call) {
  return sums_of_grads(
      call,
      {.group = options_of(call.attrs).group, .after = After::ReplicatedComputation, .order = {}});
}

std::vector<Value> gradient_gathered(const GradCall& call) {
  std::vector<Shape> shapes;
  for (const Value& input : call.inputs) shapes.push_back(input.shape());
  return all_gather(all_grads(call), shapes, rank_in_group(call.attrs), options_of(call.attrs));
}

std::vector<Value> gradient_all_gather(const GradCall& call) {
  const CollectiveOptions options = options_of(call.attrs);
  const RankInGroup here = rank_in_group(call.attrs);
  const std::vector<Value> grads = all_grads(call);
  return options.after == After::ReplicatedComputation ? own_slice(grads, here, options)
                                                       : reduce_scatter(grads, here, options);
}

std::vector<Value> gradient_broadcast(const GradCall& call) {
  const CollectiveOptions options = options_of(call.attrs);
  const Value dy = options.after == After::ReplicatedComputation
                       ? call.grads[0]
                       : all_reduce(call.grads[0], options);
  const Shape shape = dy.shape();
  const auto root = static_cast<double>(call.attrs.integer("root"));
  const Value here = equal(replica_id(call.graph), call.graph.scalar(root, DType::I64));
  const Value none = broadcast_to(call.graph.scalar(0, dy.dtype()), shape);
  return {select(broadcast_to(here, shape), dy, none)};
}

// A reduction adds every rank's elements; each rank sends and receives what the others lack or
// need.
double ranks_of(const OpCall& call) {
  return call.attrs.has("size") ? static_cast<double>(call.attrs.integer("size")) : 2.0;
}

double bytes_of(std::span<const ValueType> types) {
  double bytes = 0;
  for (const ValueType& type : types) {
    bytes += static_cast<double>(type.shape.elements()) * static_cast<double>(size_of(type.dtype));
  }
  return bytes;
}

Cost cost_reduce_scatter(const OpCall& call, std::span<const ValueType>) {
  const double others = ranks_of(call) - 1;
  const double bytes = bytes_of(call.inputs);
  const double elements = bytes / static_cast<double>(size_of(call.dtype(0)));
  return {elements * others / (others + 1), 2 * bytes * others / (others + 1)};
}

Cost cost_all_gather(const OpCall& call, std::span<const ValueType> outputs) {
  const double others = ranks_of(call) - 1;
  return {0, 2 * bytes_of(outputs) * others / (others + 1)};
}

bool is_other_axis(const PlaceCall& call) {
  return call.attrs().text(kGroup) != call.axis;
}

[[noreturn]] void refuse(const PlaceCall& call, std::size_t i, std::string_view takes) {
  fail<UsageError>("value {} is {} on axis {}; this takes {}", i, call.inputs[i].str(), call.axis,
                   takes);
}

// Adds what each rank holds, whatever its placement, except slices: those may differ in size. A
// slice of one sample is its own sum over samples: a rank with one has no node that adds it.
void expect_summands(const PlaceCall& call) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Placement& p = call.inputs[i];
    const bool one = p.is_sharded() && !p.is_flat() && call.shape(i)[p.dim] == 1;
    if (p.is_sharded() && !one) {
      refuse(call, i, "no slices: reduce along that dimension first");
    }
    if (p.is_partial() && p.reduction != Placement::Reduction::Sum) {
      refuse(call, i, "sums, not largest or smallest elements");
    }
  }
}

std::vector<Placement> place_all_reduce(const PlaceCall& call) {
  if (is_other_axis(call)) return {call.inputs.begin(), call.inputs.end()};
  expect_summands(call);
  return call.all(Placement::replicated());
}

std::vector<Placement> place_reduce_scatter(const PlaceCall& call) {
  expect_summands(call);
  return call.all(is_other_axis(call) ? Placement::replicated() : Placement::sharded_flat());
}

std::vector<Placement> place_all_gather(const PlaceCall& call) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const bool taken =
        is_other_axis(call) ? call.inputs[i].is_replicated() : call.inputs[i].is_flat();
    if (!taken) refuse(call, i, "slices of a list: Sharded(flat)");
  }
  return call.all(Placement::replicated());
}

std::vector<Placement> place_own_slice(const PlaceCall& call) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.inputs[i].is_replicated()) refuse(call, i, "what is the same on all ranks");
  }
  return call.all(is_other_axis(call) ? Placement::replicated() : Placement::sharded_flat());
}

std::vector<Placement> place_broadcast(const PlaceCall& call) {
  if (is_other_axis(call)) return {call.inputs.begin(), call.inputs.end()};
  if (call.inputs[0].is_sharded()) refuse(call, 0, "no slices, which may differ in size");
  return call.all(Placement::replicated());
}

std::vector<Placement> place_for_each_rank(const PlaceCall& call) {
  const bool taken = is_other_axis(call) || call.inputs[0].is_replicated();
  if (!taken) refuse(call, 0, "what is the same on all ranks");
  return {call.inputs.begin(), call.inputs.end()};
}

Graph& graph_of(std::span<const Value> values, std::string_view op) {
  require(!values.empty(), "[{}] there is nothing to communicate", op);
  return values[0].graph();
}

}  // namespace

std::vector<Value> all_reduce(std::span<const Value> values, const CollectiveOptions& options) {
  return graph_of(values, "all_reduce").add(Op::AllReduce, values, attrs_of(options));
}

Value all_reduce(Value value, const CollectiveOptions& options) {
  return all_reduce(std::span<const Value>(&value, 1), options).front();
}

std::vector<Value> all_reduce_gradients(std::span<const Value> values) {
  Attrs attrs = attrs_of({});
  attrs.set(kBucket, true);
  return graph_of(values, "all_reduce").add(Op::AllReduce, values, std::move(attrs));
}

std::vector<Value> all_reduce_aside(std::span<const Value> values) {
  Attrs attrs = attrs_of({});
  attrs.set(kBucket, true);
  attrs.set(kAside, true);
  return graph_of(values, "all_reduce").add(Op::AllReduce, values, std::move(attrs));
}

std::vector<Value> reduce_scatter(std::span<const Value> values, RankInGroup here,
                                  const CollectiveOptions& options) {
  return graph_of(values, "reduce_scatter").add(Op::ReduceScatter, values, attrs_of(options, here));
}

std::vector<Value> own_slice(std::span<const Value> values, RankInGroup here,
                             const CollectiveOptions& options) {
  return graph_of(values, "own_slice").add(Op::OwnSlice, values, attrs_of(options, here));
}

std::vector<Value> all_gather(std::span<const Value> slices, std::span<const Shape> shapes,
                              RankInGroup here, const CollectiveOptions& options) {
  Attrs attrs = attrs_of(options, here);
  attrs.set("shapes", encode(shapes));
  return graph_of(slices, "all_gather").add(Op::AllGather, slices, std::move(attrs));
}

Value broadcast(Value value, int root, const CollectiveOptions& options) {
  Attrs attrs = attrs_of(options);
  attrs.set("root", static_cast<std::int64_t>(root));
  return value.graph().add1(Op::Broadcast, {value}, std::move(attrs));
}

Value for_each_rank(Value value, const CollectiveOptions& options) {
  return value.graph().add1(Op::ForEachRank, {value}, attrs_of(options));
}

bool is_collective(const Node& node) {
  return node.op == Op::AllReduce || node.op == Op::ReduceScatter || node.op == Op::AllGather ||
         node.op == Op::Broadcast;
}

bool is_for_ranks(const Node& node) {
  return is_collective(node) || node.op == Op::OwnSlice || node.op == Op::ForEachRank;
}

bool is_aside(const Node& node) {
  return is_bucket(node) && node.attrs.has(kAside);
}

bool is_prefetched(const Node& node) {
  return is_bucket(node) && node.attrs.has(kPrefetched);
}

bool is_bucket(const Node& node) {
  return is_collective(node) && node.attrs.flag(kBucket);
}

std::vector<Slice> slices_of(std::span<const ValueType> values, RankInGroup here) {
  std::size_t elements = 0;
  for (const ValueType& value : values) {
    elements += static_cast<std::size_t>(value.shape.elements());
  }
  const std::size_t size = values.empty() ? 1 : size_of(values[0].dtype);
  const Slice own = slice_of(elements, size, here.rank, here.size);
  std::vector<Slice> slices;
  std::size_t begin = 0;
  for (const ValueType& value : values) {
    const std::size_t end = begin + static_cast<std::size_t>(value.shape.elements());
    const Slice common = overlap({begin, end}, own);
    slices.push_back({common.begin - begin, common.end - begin});
    begin = end;
  }
  return slices;
}

RankInGroup rank_in_group(const Attrs& attrs) {
  return {.rank = static_cast<int>(attrs.integer("rank")),
          .size = static_cast<int>(attrs.integer("size"))};
}

Value replica_id(Graph& graph) {
  for (const auto& [name, id] : graph.inputs()) {
    if (name == kReplicaInput) return {&graph, id};
  }
  return graph.input(kReplicaInput, {DType::I64, {}});
}

std::vector<OpDef> collective_ops() {
  return {{.op = Op::AllReduce,
           .name = "all_reduce",
           .infer = infer_same,
           .gradient = gradient_all_reduce,
           .each_in_place = true,
           .place = place_all_reduce},
          {.op = Op::ReduceScatter,
           .name = "reduce_scatter",
           .infer = infer_slices,
           .gradient = gradient_gathered,
           .cost = cost_reduce_scatter,
           .place = place_reduce_scatter},
          {.op = Op::AllGather,
           .name = "all_gather",
           .infer = infer_all_gather,
           .gradient = gradient_all_gather,
           .cost = cost_all_gather,
           .place = place_all_gather},
          {.op = Op::Broadcast,
           .name = "broadcast",
           .infer = infer_broadcast,
           .gradient = gradient_broadcast,
           .each_in_place = true,
           .place = place_broadcast},
          {.op = Op::OwnSlice,
           .name = "own_slice",
           .infer = infer_slices,
           .gradient = gradient_gathered,
           .place = place_own_slice},
          {.op = Op::ForEachRank,
           .name = "for_each_rank",
           .infer = infer_same,
           .gradient = gradient_for_each_rank,
           .view = true,
           .place = place_for_each_rank}};
}

}  // namespace lockstep
