// Ops over lists of parameters. The planner stores the gradients of one node contiguously, and the
// State does the same for parameters and slots, so that a kernel makes one pass over flat memory.
#pragma once

#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The update of parameters by a rule, in place: parameters and slots are variables and have their
// new values after the step. No outputs.
//
// Gradients are sums over examples; `scale` (f32 scalar) turns them into what the rule sees: one
// over the weight of the global batch, times the clipping factor if there is one. With g = gradient
// * scale, t = step (i64 scalar, counted from 1), r = rate (f32 scalar):
//
//   sgd      {momentum, nesterov}            slots: v if momentum > 0
//            v = momentum * v - r * g;  p += nesterov ? momentum * v - r * g : v   (Keras)
//   adam     {beta_1, beta_2, epsilon}       slots: m, v
//            m += (g - m)(1 - beta_1);  v += (g² - v)(1 - beta_2)
//            p -= r * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)   (Keras)
//   adamw    adam, and before it p -= r * weight_decay * p
//   rmsprop  {rho, momentum, epsilon, centered}   slots: v, then momentum's, then centered's mean
//            v = rho v + (1 - rho) g²;  d = v - mean² if centered
//            step = r * g / sqrt(d + epsilon);  m = momentum * m + step; p -= m   (Keras)
//   adagrad  {epsilon}                       slots: a (starts at initial_accumulator_value)
//            a += g²;  p -= r * g / sqrt(a + epsilon)
//   lars     {momentum, weight_decay, trust, epsilon}   slots: v
//            per parameter: local = trust * |p| / (|g| + weight_decay * |p| + epsilon), 1 if |p|
//            or |g| is 0;  v = momentum * v + local * r * (g + weight_decay * p);  p -= v
//   lamb     {beta_1, beta_2, epsilon, weight_decay}    slots: m, v
//            per parameter: u = m̂ / (sqrt(v̂) + epsilon) + weight_decay * p;
//            p -= r * (|p| / |u|, 1 if either is 0) * u
//
// All rules except lars and lamb also take weight_decay if it is not 0 (decoupled: p -= r *
// weight_decay * p before the rule), and clip_value (the limit of each |g|) if it is set. All rules
// take clip_norm (the limit of the norm of each parameter's g).
//
// A scale of 0 (an empty global batch, a step to be skipped) changes nothing: parameters and slots
// keep their bits, whatever the gradients hold.
//
// One more rule is no optimizer's: the pass Accumulate writes it (passes/accumulate.h).
//
//   accumulate   p = g if r is 0, else p + g. The parameters are accumulators: variables that every
//                rank has its own values of, or that are replicated and take replicated values.
struct UpdateInputs {
  Value rate;
  Value scale;
  Value step;
  std::vector<Value> parameters;
  std::vector<Value> gradients;
  std::vector<std::vector<Value>> slots;  // slots[s][parameter]
};
// The attribute of an update of slices: each rank has its own slices of parameters, gradients and
// slots (Sharded(flat)), each with one dimension. Its parameters are values, and their new values
// are the node's outputs, computed in place; its slots are variables, as always.
inline constexpr const char* kOfSlices = "of_slices";

// The attribute of an update by lars or lamb whose rate already has each parameter's trust ratio:
// the rule takes no norms. For parameters of which a rank has slices only.
inline constexpr const char* kTrusted = "trusted";

// The attribute of an update whose scale is 0 if a gradient is not finite: it has a loss scale.
inline constexpr const char* kSkipsOverflow = "skips_overflow";

// The attribute of an update whose slots are in host memory while the rest is in a device's: they
// are copied to a staging buffer and back (passes/offload.h).
inline constexpr const char* kStaged = "staged";
// Its slots, as values; none of other nodes.
std::span<const ValueId> staged_slots(const Node& node);

inline constexpr const char* kAccumulateRule = "accumulate";
// Whether a node adds to accumulators.
bool is_accumulation(const Node& node);

// Node inputs in order: rate, scale, step, parameters…, gradients…, slots[0]…, slots[1]….
// Attributes: rule, count (of parameters), slots (how many), and those of the rule.
void update(const UpdateInputs& inputs, const std::string& rule, Attrs attrs);

// The norms that an update with these inputs needs of each parameter, as f32 scalars, and nothing
// is changed: of gradients times scale (clip_norm), or, for lars and lamb, first of all parameters,
// then of what the rule compares them with: gradients as it sees them, or directions. Ranks that
// have slices take the norms of those, add up their squares, and update one parameter at a time.
enum class UpdateNorm { Gradients, Trust };
std::vector<Value> update_norms(const UpdateInputs& inputs, const std::string& rule, Attrs attrs,
                                UpdateNorm of);
// Which of them a node of Op::UpdateNorms computes.
UpdateNorm update_norm_of(const Attrs& attrs);

// The Euclidean norm of all elements of all values together (f32 scalar).
Value global_norm(std::span<const Value> values);
// The same of gradients, either all before or all after their all-reduce. The pass Bucket takes the
// norm of every bucket by itself, before or after the bucket's all-reduce, so that it may be
// reduced in place and its memory used again as if nobody had asked. Such a node has the attribute
// by_bucket = true.
inline constexpr const char* kByBucket = "by_bucket";
Value gradient_norm(std::span<const Value> gradients);

}  // namespace lockstep
