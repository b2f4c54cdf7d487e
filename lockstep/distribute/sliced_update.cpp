#include "lockstep/distribute/sliced_update.h"

#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

void set_local(Value value) {
  value.graph().info(value.id()).placement = Placement::local();
}

std::vector<Value> add_update(const UpdateInputs& inputs, Attrs attrs) {
  std::vector<Value> all{inputs.rate, inputs.scale, inputs.step};
  all.insert(all.end(), inputs.parameters.begin(), inputs.parameters.end());
  all.insert(all.end(), inputs.gradients.begin(), inputs.gradients.end());
  for (const std::vector<Value>& slot : inputs.slots) {
    all.insert(all.end(), slot.begin(), slot.end());
  }
  attrs.set("count", static_cast<std::int64_t>(inputs.parameters.size()));
  return inputs.rate.graph().add(Op::Update, all, std::move(attrs));
}

UpdateInputs one_of(const UpdateInputs& inputs, std::size_t i) {
  UpdateInputs one{.rate = inputs.rate,
                   .scale = inputs.scale,
                   .step = inputs.step,
                   .parameters = {inputs.parameters[i]},
                   .gradients = {inputs.gradients[i]},
                   .slots = {}};
  for (const std::vector<Value>& slot : inputs.slots) one.slots.push_back({slot[i]});
  return one;
}

// From norms of slices to norms of the whole.
std::vector<Value> reduced(const std::vector<Value>& norms, const CollectiveOptions& options) {
  std::vector<Value> squares;
  for (const Value& norm : norms) {
    squares.push_back(square(norm));
    set_local(norm);
    set_local(squares.back());
  }
  std::vector<Value> whole;
  for (const Value& sum : all_reduce(squares, options)) whole.push_back(sqrt(sum));
  return whole;
}

// What the update of each parameter has instead of the common scale: reduced so that the norm of
// its gradient is at most the limit. 0 stays 0: a step to be skipped is skipped. A norm that is not
// finite gives NaN, so that it shows up instead of being clipped away.
Value clipped_scale(Value scale, Value norm, double limit) {
  Graph& graph = scale.graph();
  const Value most = graph.scalar(limit);
  const Value factor =
      select(less_equal(norm, most), graph.scalar(1.0), add(div(most, norm), sub(norm, norm)));
  return select(equal(scale, graph.scalar(0.0)), scale, mul(scale, factor));
}

// The trust ratio of graph/ops/update.h, 1 if either norm is 0.
Value trust_ratio(const Attrs& attrs, Value parameter, Value other) {
  Graph& graph = parameter.graph();
  const Value none = graph.scalar(0.0);
  Value ratio;
  if (attrs.text("rule") == "lamb") {
    ratio = div(parameter, other);
  } else {
    const Value below =
        other + parameter * attrs.real("weight_decay") + graph.scalar(attrs.real("epsilon"));
    ratio = div(parameter * attrs.real("trust"), below);
  }
  const Value missing = logical_or(equal(parameter, none), equal(other, none));
  return select(missing, graph.scalar(1.0), ratio);
}

bool has_trust_ratio(const Attrs& update) {
  return update.text("rule") == "lars" || update.text("rule") == "lamb";
}

double clip_norm_of(const Attrs& update) {
  return update.has("clip_norm") ? update.real("clip_norm") : 0.0;
}

}  // namespace

Value norm_over_ranks(Value own, RankInGroup here, const CollectiveOptions& options) {
  const Value row = pad(reshape(own, {1}), {here.rank}, {here.size - 1 - here.rank});
  for (const Value& value : {own, row}) set_local(value);
  const Value all = all_reduce(row, options);
  return global_norm({&all, 1});
}

bool needs_parameter_norms(const Attrs& update) {
  return has_trust_ratio(update) || clip_norm_of(update) > 0;
}

std::vector<Value> write_sliced_update(const SlicedUpdate& update) {
  const UpdateInputs& inputs = update.inputs;
  const Attrs& attrs = update.attrs;
  if (!needs_parameter_norms(attrs)) return add_update(inputs, attrs);
  const std::string& rule = attrs.text("rule");
  const std::size_t count = inputs.parameters.size();
  std::vector<UpdateInputs> each;
  for (std::size_t i = 0; i < count; ++i) each.push_back(one_of(inputs, i));
  if (const double limit = clip_norm_of(attrs); limit > 0) {
    const std::vector<Value> norms =
        reduced(update_norms(inputs, rule, attrs, UpdateNorm::Gradients), update.gradient_norms);
    for (std::size_t i = 0; i < count; ++i) {
      each[i].scale = clipped_scale(inputs.scale, norms[i], limit);
    }
  }
  if (has_trust_ratio(attrs)) {
    std::vector<Value> own;  // of all parameters, then of what they are compared with
    if (clip_norm_of(attrs) > 0) {
      std::vector<Value> others;
      for (const UpdateInputs& one : each) {
        const std::vector<Value> norms = update_norms(one, rule, attrs, UpdateNorm::Trust);
        own.push_back(norms[0]);
        others.push_back(norms[1]);
      }
      own.insert(own.end(), others.begin(), others.end());
    } else {
      own = update_norms(inputs, rule, attrs, UpdateNorm::Trust);
    }
    const std::vector<Value> norms = reduced(own, update.trust_norms);
    for (std::size_t i = 0; i < count; ++i) {
      each[i].rate = mul(inputs.rate, trust_ratio(attrs, norms[i], norms[count + i]));
    }
  }
  Attrs settled = attrs;
  if (clip_norm_of(attrs) > 0) settled.set("clip_norm", 0.0);
  if (has_trust_ratio(attrs)) settled.set(kTrusted, true);
  std::vector<Value> after;
  for (const UpdateInputs& one : each) {
    const std::vector<Value> updated = add_update(one, settled);
    after.insert(after.end(), updated.begin(), updated.end());
  }
  return after;
}

}  // namespace lockstep
