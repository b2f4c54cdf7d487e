#include "lockstep/graph/ops/placement_rules.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Reduction = Placement::Reduction;

bool names(const std::vector<std::size_t>& list, std::size_t i) {
  return std::ranges::find(list, i) != list.end();
}

bool is_sum(const Placement& placement) {
  return placement == Placement::partial(Reduction::Sum);
}

bool all_are(const PlaceCall& call, const Placement& placement) {
  return std::ranges::all_of(call.inputs, [&](const Placement& p) { return p == placement; });
}

// The dimension of the output that the operands' slices lie along; they must agree.
std::vector<Placement> place_aligned(const PlaceCall& call) {
  std::optional<int> dim;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].is_partial()) return place_own(call);
    if (!call.inputs[i].is_sharded()) continue;
    const int aligned = call.inputs[i].dim + call.output(0).rank() - call.shape(i).rank();
    require(dim.value_or(aligned) == aligned,
            "operands are sliced along dimensions {} and {} of the result; slice them alike",
            dim.value_or(aligned), aligned);
    dim = aligned;
  }
  return call.all(dim ? Placement::sharded(*dim) : Placement::replicated());
}

}  // namespace

std::vector<Placement> place_own(const PlaceCall& call) {
  require(call.axis == kDataAxis,
          "on axis {} its result is no slice and no summand of the whole one; reduce or gather its "
          "operands first",
          call.axis);
  return call.all(Placement::local());
}

std::optional<std::vector<Placement>> place_settled(const PlaceCall& call) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    require(!call.inputs[i].is_flat(),
            "operand {} is a slice of a bucket, which only updates and all_gather take", i);
  }
  if (all_are(call, Placement::replicated())) return call.all(Placement::replicated());
  if (std::ranges::any_of(call.inputs, [](const Placement& p) { return p.is_local(); })) {
    return call.all(Placement::local());
  }
  return std::nullopt;
}

std::vector<Placement> place_elementwise(const PlaceCall& call) {
  const auto settled = place_settled(call);
  return settled ? *settled : place_aligned(call);
}

std::vector<Placement> place_linear(const PlaceCall& call) {
  if (all_are(call, Placement::partial())) return call.all(Placement::partial());
  return place_elementwise(call);
}

std::vector<Placement> place_product(const PlaceCall& call) {
  const auto partial = std::ranges::count_if(call.inputs, is_sum);
  const auto replicated =
      std::ranges::count_if(call.inputs, [](const Placement& p) { return p.is_replicated(); });
  if (partial == 1 && partial + replicated == std::ssize(call.inputs)) {
    return call.all(Placement::partial());
  }
  return place_elementwise(call);
}

std::vector<Placement> place_quotient(const PlaceCall& call) {
  if (is_sum(call.inputs[0]) && call.inputs[1].is_replicated()) {
    return call.all(Placement::partial());
  }
  return place_elementwise(call);
}

std::vector<Placement> place_select(const PlaceCall& call) {
  if (call.inputs[0].is_replicated() && is_sum(call.inputs[1]) && is_sum(call.inputs[2])) {
    return call.all(Placement::partial());
  }
  return place_elementwise(call);
}

std::vector<Placement> place_maximum(const PlaceCall& call) {
  const Placement largest = Placement::partial(Reduction::Max);
  return all_are(call, largest) ? call.all(largest) : place_elementwise(call);
}

std::vector<Placement> place_minimum(const PlaceCall& call) {
  const Placement smallest = Placement::partial(Reduction::Min);
  return all_are(call, smallest) ? call.all(smallest) : place_elementwise(call);
}

std::vector<Placement> place_samples(const PlaceCall& call, const SampleRule& rule) {
  std::vector<Placement> considered;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Placement& p = call.inputs[i];
    const bool statistic = names(rule.statistics, i);
    if (statistic && (p.is_local() || p.is_replicated())) continue;
    require(!p.is_sharded() || !(statistic || names(rule.parameters, i)),
            "operand {}, a parameter, is {}; it must be Replicated", i, p.str());
    considered.push_back(p);
  }
  PlaceCall apart = call;
  apart.inputs = considered;
  if (auto settled = place_settled(apart)) {
    const bool own_statistics =
        std::ranges::any_of(call.inputs, [](const Placement& p) { return p.is_local(); });
    return own_statistics ? place_own(call) : *settled;
  }
  std::optional<int> dim;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Placement& p = call.inputs[i];
    if (p.is_partial()) return place_own(call);
    if (!p.is_sharded()) continue;
    require(dim.value_or(p.dim) == p.dim, "operands are sliced along dimensions {} and {}",
            dim.value_or(p.dim), p.dim);
    dim = p.dim;
  }
  int rank = 0;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) rank = std::max(rank, call.shape(i).rank());
  require(*dim + rule.last_dims < rank,
          "a slice along dimension {} of {} cuts through what belongs together; gather it first",
          *dim, rank);
  std::vector<Placement> results = call.all(Placement::sharded(*dim));
  for (std::size_t o = 0; o < results.size(); ++o) {
    if (names(rule.sums, o)) results[o] = Placement::partial();
    if (names(rule.own, o)) results[o] = Placement::local();
  }
  return results;
}

std::vector<Placement> place_images(const PlaceCall& call, const SampleRule& rule) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    require(!call.inputs[i].is_sharded() || call.inputs[i].dim == 0,
            "images are {}; only slices of samples, Sharded(0), are taken", call.inputs[i].str());
  }
  SampleRule images = rule;
  images.last_dims = 0;
  return place_samples(call, images);
}

}  // namespace lockstep
