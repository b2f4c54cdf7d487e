#include "lockstep/train/survival.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The parts of a variable of which every rank has its own, in a copy: restored to as many ranks,
// they give the bits of an undisturbed run, which their sum would not.
constexpr std::string_view kPartsPrefix = "parts/";
constexpr const char* kCopyName = "the copy of the run's state";

constexpr double kShareOfTime = 0.01;
constexpr std::int64_t kFirstInterval = 10;
constexpr std::int64_t kLongestInterval = 1000;

bool has_parts(const Variable& variable) {
  return variable.placement.on(kDataAxis).is_local();
}

}  // namespace

Survival::Survival(ModelImpl& impl, std::int64_t every)
    : impl_(impl),
      every_(every),
      meter_(impl.session().tracks(), impl.session().host_track(), impl.session().phases()) {
  require(every >= 0, "[fit] copy_state_every must not be negative: {}", every);
  if (impl.session().world().survives()) ++impl.session().world().fits;
}

bool Survival::due() const {
  Session& session = impl_.session();
  return session.world().survives() && session.step >= next_;
}

void Survival::keep(const Progress& where, const History& history) {
  Session& session = impl_.session();
  const PhaseScope checkpoint(session.phases(), Phase::Checkpoint);
  const ActivityScope saving(session.world(), "saving");
  const std::int64_t begin = now_ns();
  const NamedVariables variables = impl_.checkpoint_variables(where.mid_epoch());
  TensorFile contents = impl_.gather(variables, "checkpoint");
  for (const auto& [name, variable] : variables) {
    if (!has_parts(*variable)) continue;
    contents.rows[std::string(kPartsPrefix) + name] = session.get_parts(variable);
  }
  write_progress(where, contents);
  // What writes files is in the chief's state alone, and another worker may become the chief.
  std::string& callbacks = contents.metadata["callbacks"];
  callbacks = session.world().exchange(callbacks).front();
  if (callbacks.empty()) contents.metadata.erase("callbacks");
  copies_.push_back({.step = session.step,
                     .bytes = safetensors_bytes(contents, kCopyName),
                     .steps = history.steps,
                     .samples = history.samples,
                     .epochs = history.epochs.size()});
  const std::int64_t mine = every_ > 0 ? every_ : next_interval(now_ns() - begin);
  next_ = session.step + std::stoll(session.world().exchange(std::to_string(mine)).front());
  kept_step_ = session.step;
  kept_ns_ = now_ns();
  // The exchange tells that all have this copy.
  copies_.erase(copies_.begin(), copies_.end() - 1);
  session.world().admit_newcomers();
}

std::int64_t Survival::next_interval(std::int64_t copy_ns) const {
  const std::int64_t steps = impl_.session().step - kept_step_;
  if (kept_ns_ == 0 || steps == 0) return kFirstInterval;
  const double step_ns = static_cast<double>(now_ns() - copy_ns - kept_ns_) /
                         static_cast<double>(steps) * kShareOfTime;
  const double interval = static_cast<double>(copy_ns) / std::max(step_ns, 1.0);
  return std::clamp(static_cast<std::int64_t>(interval) + 1, std::int64_t{1}, kLongestInterval);
}

bool Survival::meet() {
  World& world = impl_.session().world();
  if (!world.survives() && !world.newcomer()) return false;
  std::string mine = std::to_string(world.fits);
  for (const Copy& copy : copies_) mine += fmt::format(" {}", copy.step);
  std::set<std::int64_t> common;
  int source = -1;
  bool newcomers = false;
  const std::vector<std::string> all = world.meet_at(mine);
  for (std::size_t w = 0; w < all.size(); ++w) {
    std::istringstream numbers(all[w]);
    std::int64_t fits = 0;
    numbers >> fits;
    require(fits == world.fits,
            "[fit] worker {} is in its call {} of fit and worker {} in its call {}: a worker that "
            "is started again can only take part in the first call of a program",
            world.worker(), world.fits, w, fits);
    const std::set<std::int64_t> theirs{std::istream_iterator<std::int64_t>(numbers), {}};
    if (theirs.empty()) {
      newcomers = true;
      continue;
    }
    if (source < 0) {
      source = static_cast<int>(w);
      common = theirs;
    }
    std::erase_if(common, [&](std::int64_t step) { return !theirs.contains(step); });
  }
  if (source < 0) return false;
  ensure(!common.empty(), "[fit] the workers have no copy of their state in common");
  const std::int64_t step = *common.rbegin();
  std::erase_if(copies_, [&](const Copy& copy) { return copy.step != step; });
  if (newcomers) {
    const std::string_view given =
        world.worker() == source ? std::string_view(copies_.front().bytes) : std::string_view();
    std::vector<std::string> got = world.exchange(given);
    if (copies_.empty()) {
      copies_.push_back({.step = step, .bytes = std::move(got[static_cast<std::size_t>(source)])});
    }
  }
  return true;
}

Progress Survival::restore(const std::function<void(const Progress&)>& accept) {
  Session& session = impl_.session();
  const Copy& copy = copies_.front();
  TensorFile contents = parse_safetensors(std::as_bytes(std::span(copy.bytes)), kCopyName);
  std::map<std::string, Tensor> parts;
  for (auto it = contents.tensors.begin(); it != contents.tensors.end();) {
    const bool is_part = it->first.starts_with(kPartsPrefix);
    if (is_part) parts[it->first.substr(kPartsPrefix.size())] = it->second;
    it = is_part ? contents.tensors.erase(it) : std::next(it);
  }
  const Progress where = *impl_.apply(contents, kCopyName, LoadPurpose::Resume, accept);
  for (const auto& [name, variable] : impl_.checkpoint_variables(where.mid_epoch())) {
    const auto found = parts.find(name);
    if (found == parts.end()) continue;
    const std::int64_t each = variable->shape.elements();
    if (found->second.elements() != each * session.world().size()) continue;
    std::vector<Tensor> rows;
    for (int rank = 0; rank < session.world().size(); ++rank) {
      Tensor row(variable->dtype, variable->shape);
      if (row.bytes() > 0) {
        std::memcpy(row.raw(), found->second.raw() + static_cast<std::size_t>(rank) * row.bytes(),
                    row.bytes());
      }
      rows.push_back(std::move(row));
    }
    session.set_parts(variable, rows);
  }
  next_ = session.step + (every_ > 0 ? every_ : kFirstInterval);
  kept_step_ = session.step;
  kept_ns_ = now_ns();
  if (recovery_) {
    recovery_->step = session.step;
    recovery_->lost_steps -= session.step;
    recovery_->workers = session.world().workers();
  }
  return where;
}

History Survival::history() const {
  History history = before_;
  const Copy& copy = copies_.front();
  history.steps = copy.steps;
  history.samples = copy.samples;
  if (history.epochs.size() > copy.epochs) history.epochs.resize(copy.epochs);
  return history;
}

void Survival::renew(const History& so_far) {
  Session& session = impl_.session();
  World& world = session.world();
  before_ = so_far;
  if (!recovery_) {
    recovery_ = Recovery{.cause = world.cause(), .lost_steps = session.step};
    failed_ns_ = now_ns();
  }
  impl_.steps.clear();
  impl_.balancer.reset();
  session.clear();
  const ActivityScope planning(world, "planning");
  for (;;) {
    try {
      return world.renew();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (world.goes_on_after(error)) continue;
      world.report(error);
      throw;
    }
  }
}

void Survival::note_step(History& history) {
  if (!recovery_) return;
  recovery_->seconds = static_cast<double>(now_ns() - failed_ns_) * 1e-9;
  history.recoveries.push_back(*std::exchange(recovery_, std::nullopt));
}

}  // namespace lockstep
