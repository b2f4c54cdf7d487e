#include "lockstep/runtime/session.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Element by element.
void add_to(Tensor& total, const Tensor& value) {
  dispatch(total.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<T> sum = total.values<T>();
    const std::span<const T> more = value.values<T>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(sum[i] + more[i]);
  });
}

std::string_view bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw()), tensor.bytes()};
}

// The slices that a local rank has of variables, as its own graph says.
State::SliceOf slices_for(std::span<const CompileRequest> requests, int local, const State& state) {
  std::map<const Variable*, Slice> own;
  for (const CompileRequest& request : requests) {
    if (request.rank != local) continue;
    for (const Node& node : request.graph.nodes()) {
      if (node.op == Op::Variable) own[node.variable.get()] = slice_of_variable(node);
    }
  }
  return [own, &state](const Node& node) {
    if (const auto found = own.find(node.variable.get()); found != own.end()) return found->second;
    return state.has(*node.variable) ? state.slice(*node.variable) : slice_of_variable(node);
  };
}

std::shared_ptr<World> world_for(const SessionOptions& options) {
  if (options.world != nullptr) return options.world;
  // Kernels that somebody chose are those of a CPU.
  if (options.device != nullptr || options.kernels != nullptr) {
    return std::make_shared<World>(options.device);
  }
  return default_world();
}

}  // namespace

Session::Session(const SessionOptions& options)
    : world_(world_for(options)),
      kernels_(options.kernels),
      seed_(options.seed),
      record_(options.record),
      recorder_(std::make_unique<Recorder>()),
      offload_rates_(static_cast<std::size_t>(world_->local_size())) {
  for (int local = 0; local < local_size(); ++local) {
    states_.push_back(std::make_unique<State>(world_->device(local), seed_));
    tracks_.push_back(&recorder_->track(fmt::format("replica {}", world_->rank(local))));
  }
  host_track_ = world_->threaded() ? &recorder_->track("host") : tracks_.front();
  std::vector<const Track*> all = tracks();
  if (world_->threaded()) all.push_back(host_track_);
  phases_ = std::make_unique<PhaseClock>(std::move(all));
}

const KernelLibrary& Session::kernels(int local) const {
  return kernels_ != nullptr ? *kernels_ : world_->kernels(local);
}

void Session::add(const Graph& first, std::span<const CompileRequest> requests) {
  for (int local = 0; local < local_size(); ++local) {
    State& state = *states_[static_cast<std::size_t>(local)];
    state.add(first, slices_for(requests, local, state));
  }
}

void Session::lay_out(const Graph& first, std::span<const CompileRequest> requests) {
  laid_out_ = true;
  std::map<const Variable*, Tensor> gathered;
  for (const VariableRef& variable : states_.front()->variables()) {
    if (states_.front()->is_sharded(*variable)) gathered[variable.get()] = gather(*variable);
  }
  for (int local = 0; local < local_size(); ++local) {
    std::unique_ptr<State>& state = states_[static_cast<std::size_t>(local)];
    const std::unique_ptr<State> before = std::exchange(state, nullptr);
    state = std::make_unique<State>(before->memory(), seed_);
    state->add(first, slices_for(requests, local, *state));
    for (const VariableRef& variable : before->variables()) {
      state->add(variable);
      const auto whole = gathered.find(variable.get());
      state->set(*variable, whole != gathered.end() ? whole->second : before->get(*variable));
    }
  }
  ++layout_version_;
}

std::size_t Session::resident_bytes() const {
  std::size_t most = 0;
  for (const auto& state : states_) most = std::max(most, state->resident_bytes());
  return most;
}

void Session::add(const VariableRef& variable) {
  if (states_.front()->has(*variable)) return;
  const std::vector<VariableRef> known = states_.front()->variables();
  for (const auto& state : states_) state->add(variable);
  mirror_new(known);
}

// Variables that were not known before start with the first rank's values, whatever a user's own
// initialiser drew on the others; sums start on the first rank alone.
void Session::mirror_new(std::span<const VariableRef> known) {
  if (world_->size() == 1) return;
  const std::set<VariableRef> old(known.begin(), known.end());
  std::vector<VariableRef> added;
  for (const VariableRef& variable : states_.front()->variables()) {
    if (!old.contains(variable)) added.push_back(variable);
  }
  mirror(added);
}

void Session::mirror(std::span<const VariableRef> variables) {
  for (const VariableRef& variable : variables) {
    if (states_.front()->is_sharded(*variable)) continue;  // every rank has its own slice
    const bool sum = variable->placement.on(kDataAxis).is_local();
    const bool first_is_here = world_->rank(0) == 0;
    Tensor value(variable->dtype, variable->shape);
    if (!sum) {
      value = states_.front()->get(*variable);
      if (world_->workers() > 1) {
        const std::string first =
            world_->exchange(first_is_here ? bytes_of(value) : std::string_view()).front();
        std::memcpy(value.raw(), first.data(), first.size());
      }
    }
    for (std::size_t r = first_is_here ? 1 : 0; r < states_.size(); ++r) {
      states_[r]->set(*variable, value);
    }
  }
}

void Session::resync() {
  if (world_->size() == 1) return;
  std::vector<VariableRef> mirrored;
  for (const VariableRef& variable : states_.front()->variables()) {
    if (variable->placement.on(kDataAxis).is_replicated()) mirrored.push_back(variable);
  }
  mirror(mirrored);
}

Tensor Session::get(const VariableRef& variable) {
  add(variable);
  if (states_.front()->is_sharded(*variable)) return gather(*variable);
  Tensor value = states_.front()->get(*variable);
  if (!variable->placement.on(kDataAxis).is_local() || world_->size() == 1) return value;
  if (world_->workers() == 1) {
    for (std::size_t r = 1; r < states_.size(); ++r) add_to(value, states_[r]->get(*variable));
    return value;
  }
  // In the order of the ranks, so that the bits do not depend on how many workers there are.
  const std::vector<Tensor> parts = get_parts(variable);
  value = parts.front();
  for (std::size_t r = 1; r < parts.size(); ++r) add_to(value, parts[r]);
  return value;
}

std::vector<Tensor> Session::get_parts(const VariableRef& variable) {
  add(variable);
  std::string mine;
  for (const auto& state : states_) mine += bytes_of(state->get(*variable));
  std::vector<Tensor> parts;
  for (const std::string& theirs : world_->exchange(mine)) {
    for (std::size_t at = 0; at < theirs.size(); at += parts.back().bytes()) {
      parts.emplace_back(variable->dtype, variable->shape);
      std::memcpy(parts.back().raw(), theirs.data() + at, parts.back().bytes());
    }
  }
  return parts;
}

void Session::set_parts(const VariableRef& variable, std::span<const Tensor> parts) {
  add(variable);
  for (int local = 0; local < local_size(); ++local) {
    states_[static_cast<std::size_t>(local)]->set(
        *variable, parts[static_cast<std::size_t>(world_->rank(local))]);
  }
}

void Session::clear() {
  for (int local = 0; local < local_size(); ++local) {
    std::unique_ptr<State>& state = states_[static_cast<std::size_t>(local)];
    state.reset();  // before its memory is needed again
    state = std::make_unique<State>(world_->device(local), seed_);
  }
  bucket_cuts_ = {};
  parameter_groups_.clear();
  laid_out_ = false;
  ++layout_version_;
  step = 0;
}

bool Session::asks_others(const Variable& variable) const {
  return !has(variable) || states_.front()->is_sharded(variable) ||
         variable.placement.on(kDataAxis).is_local();
}

// Every rank's slice, at its place in the row-major value.
Tensor Session::gather(const Variable& variable) {
  std::string mine;
  for (const auto& state : states_) {
    const std::uint64_t begin = state->slice(variable).begin;
    const Tensor slice = state->get_slice(variable);
    const std::uint64_t bytes = slice.bytes();
    mine.append(reinterpret_cast<const char*>(&begin), sizeof(begin));
    mine.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    mine += bytes_of(slice);
  }
  Tensor value(variable.dtype, variable.shape);
  for (const std::string& theirs : world_->exchange(mine)) {
    for (const char* at = theirs.data(); at < theirs.data() + theirs.size();) {
      std::uint64_t begin = 0;
      std::uint64_t bytes = 0;
      std::memcpy(&begin, at, sizeof(begin));
      std::memcpy(&bytes, at + sizeof(begin), sizeof(bytes));
      at += sizeof(begin) + sizeof(bytes);
      std::memcpy(value.raw() + begin * size_of(variable.dtype), at, bytes);
      at += bytes;
    }
  }
  return value;
}

void Session::set(const VariableRef& variable, const Tensor& value) {
  add(variable);
  const bool sum = variable->placement.on(kDataAxis).is_local();
  for (int local = 0; local < local_size(); ++local) {
    const bool has_value = !sum || world_->rank(local) == 0;
    states_[static_cast<std::size_t>(local)]->set(
        *variable, has_value ? value : Tensor(variable->dtype, variable->shape));
  }
}

void Session::take(Session& other, std::span<const VariableRef> variables) {
  for (const VariableRef& variable : variables) {
    if (other.has(*variable)) set(variable, other.get(variable));
  }
  step = std::max(step, other.step);
}

void Session::expect_mirrored() {
  std::vector<VariableRef> mirrored;
  for (const VariableRef& variable : states_.front()->variables()) {
    const bool replicated = variable->placement.on(kDataAxis).is_replicated();
    if (replicated && !states_.front()->is_sharded(*variable)) mirrored.push_back(variable);
  }
  // A digest per variable, rank by rank.
  std::vector<std::uint32_t> mine;
  for (const auto& state : states_) {
    for (const VariableRef& variable : mirrored) {
      const std::vector<std::byte> image = state->image(*variable);
      mine.push_back(crc32c({reinterpret_cast<const char*>(image.data()), image.size()}));
    }
  }
  const std::vector<std::string> all = world_->exchange(
      {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(std::uint32_t)});
  std::vector<std::uint32_t> digests;
  for (const std::string& theirs : all) {
    const std::size_t before = digests.size();
    digests.resize(before + theirs.size() / sizeof(std::uint32_t));
    if (!theirs.empty()) std::memcpy(digests.data() + before, theirs.data(), theirs.size());
  }
  for (std::size_t i = mirrored.size(); i < digests.size(); ++i) {
    const std::size_t v = i % mirrored.size();
    const std::size_t r = i / mirrored.size();
    ensure(digests[i] == digests[v],
           "[replicas] {} is not the same on replica 0 ({}) and replica {} ({}) after step {}",
           mirrored[v]->name, world_->names()[0], r, world_->names()[r], step);
  }
}

}  // namespace lockstep
