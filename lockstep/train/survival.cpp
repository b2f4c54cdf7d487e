#include "lockstep/train/survival.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
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

using nlohmann::json;

FitMemory& memory_of(World& world) {
  if (world.fit_memory == nullptr) world.fit_memory = std::make_shared<FitMemory>();
  return *world.fit_memory;
}

// Numbers as bits: they may be infinite.
json json_of(const std::vector<DoneCall>& done) {
  json calls = json::array();
  for (const DoneCall& call : done) {
    json epochs = json::array();
    for (const EpochLog& log : call.epochs) {
      json values = json::array();
      for (const auto& [name, value] : log.logs.items()) {
        values.push_back({name, std::bit_cast<std::uint64_t>(value)});
      }
      epochs.push_back({{"epoch", log.epoch}, {"logs", values}});
    }
    calls.push_back({{"model", call.model}, {"epochs", epochs}});
  }
  return calls;
}

std::vector<DoneCall> done_calls_in(const json& calls) {
  std::vector<DoneCall> done;
  for (const json& call : calls) {
    done.push_back({.model = call.at("model").get<int>()});
    for (const json& epoch : call.at("epochs")) {
      EpochLog& log = done.back().epochs.emplace_back();
      log.epoch = epoch.at("epoch").get<std::int64_t>();
      for (const json& value : epoch.at("logs")) {
        log.logs.set(value.at(0).get<std::string>(),
                     std::bit_cast<double>(value.at(1).get<std::uint64_t>()));
      }
    }
  }
  return done;
}

bool has_parts(const Variable& variable) {
  return variable.placement.on(kDataAxis).is_local();
}

}  // namespace

// What a worker tells the others where they meet.
struct Survival::Told {
  std::int64_t call = 0;
  bool newcomer = false;
  int model = 0;
  std::set<std::pair<std::int64_t, std::int64_t>> copies = {};  // call and step
};

Survival::Survival(ModelImpl& impl, std::int64_t every)
    : impl_(impl),
      memory_(memory_of(impl.session().world())),
      call_(memory_.calls + 1),
      every_(every),
      meter_(impl.session().tracks(), impl.session().host_track(), impl.session().phases()),
      iterations_before_(memory_.iterations) {
  require(every >= 0, "[fit] copy_state_every must not be negative: {}", every);
  const World& world = impl.session().world();
  if (!world.survives() && !world.newcomer()) return;
  memory_.calls = call_;
  if (impl_.number == 0) impl_.number = ++memory_.models;
  memory_.iterations = impl_.options.optimizer.iterations();
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
  impl_.write_errors(contents);
  write_progress(where, contents);
  // What writes files is in the chief's state alone, and another worker may become the chief.
  std::string& callbacks = contents.metadata["callbacks"];
  callbacks = session.world().exchange(callbacks).front();
  if (callbacks.empty()) contents.metadata.erase("callbacks");
  std::deque<StateCopy>& copies = memory_.copies;
  copies.push_back({.call = call_,
                    .step = session.step,
                    .bytes = safetensors_bytes(contents, kCopyName),
                    .steps = history.steps,
                    .samples = history.samples,
                    .epochs = history.epochs.size()});
  const std::int64_t mine = every_ > 0 ? every_ : next_interval(now_ns() - begin);
  next_ = session.step + std::stoll(session.world().exchange(std::to_string(mine)).front());
  kept_step_ = session.step;
  kept_ns_ = now_ns();
  // The exchange tells that all have this copy.
  copies.erase(copies.begin(), copies.end() - 1);
  session.world().admit_newcomers();
}

void Survival::end(const Progress& where, const History& history) {
  if (!impl_.session().world().survives()) return;
  // Before the copy: a newcomer that receives that one needs this, too.
  memory_.done.resize(static_cast<std::size_t>(call_));
  memory_.done.back() = {.model = impl_.number, .epochs = history.epochs};
  keep(where, history);
}

std::int64_t Survival::next_interval(std::int64_t copy_ns) const {
  const std::int64_t steps = impl_.session().step - kept_step_;
  if (kept_ns_ == 0 || steps == 0) return kFirstInterval;
  const double step_ns = static_cast<double>(now_ns() - copy_ns - kept_ns_) /
                         static_cast<double>(steps) * kShareOfTime;
  const double interval = static_cast<double>(copy_ns) / std::max(step_ns, 1.0);
  return std::clamp(static_cast<std::int64_t>(interval) + 1, std::int64_t{1}, kLongestInterval);
}

std::string Survival::mine() const {
  json told = {{"call", call_},
               {"newcomer", impl_.session().world().newcomer()},
               {"model", impl_.number},
               {"copies", json::array()}};
  for (const StateCopy& copy : memory_.copies) told["copies"].push_back({copy.call, copy.step});
  return told.dump();
}

std::optional<StateCopy> Survival::common_copy(const std::vector<Told>& all, int* source) const {
  std::set<std::pair<std::int64_t, std::int64_t>> common;
  for (std::size_t w = 0; w < all.size(); ++w) {
    const auto& theirs = all[w].copies;
    if (theirs.empty()) continue;
    if (*source < 0) {
      *source = static_cast<int>(w);
      common = theirs;
    }
    std::erase_if(common, [&](const auto& each) { return !theirs.contains(each); });
  }
  if (*source < 0) return std::nullopt;
  ensure(!common.empty(), "[fit] the workers have no copy of their state in common");
  return StateCopy{.call = common.rbegin()->first, .step = common.rbegin()->second};
}

void Survival::hand_over(const StateCopy& copy, int source) {
  World& world = impl_.session().world();
  std::string given;
  if (world.worker() == source) {
    given = json_of(memory_.done).dump() + '\n' + memory_.copies.front().bytes;
  }
  std::vector<std::string> got = world.meet_at(given);
  if (!memory_.copies.empty()) return;
  std::string& text = got[static_cast<std::size_t>(source)];
  const std::size_t line = text.find('\n');
  memory_.done = done_calls_in(json::parse(text.substr(0, line)));
  memory_.copies.push_back({.call = copy.call, .step = copy.step, .bytes = text.substr(line + 1)});
}

Survival::Meeting Survival::meet() {
  World& world = impl_.session().world();
  if (!world.survives() && !world.newcomer()) return Meeting::Begin;
  if (memory_.awaited_call != 0) return take_up(memory_.awaited_call);
  std::vector<Told> all;
  Told first;  // of those who have been here before: the furthest
  bool receivers = false;
  for (const std::string& text : world.meet_at(mine())) {
    const json told = json::parse(text);
    Told& each = all.emplace_back();
    each.call = told.at("call").get<std::int64_t>();
    each.newcomer = told.at("newcomer").get<bool>();
    each.model = told.at("model").get<int>();
    for (const json& copy : told.at("copies")) {
      each.copies.emplace(copy.at(0).get<std::int64_t>(), copy.at(1).get<std::int64_t>());
    }
    receivers = receivers || each.copies.empty();
    if (!each.newcomer && each.call > first.call) first = each;
  }
  int source = -1;
  const std::optional<StateCopy> copy = common_copy(all, &source);
  // Without a failure, what the call before has left is still there.
  const bool has_state = !renewed_ && !world.newcomer();
  if (!copy || has_state) {
    world.arrive();
    return Meeting::Begin;
  }
  std::erase_if(memory_.copies, [&](const StateCopy& each) {
    return each.call != copy->call || each.step != copy->step;
  });
  if (receivers) hand_over(*copy, source);
  expect_same_model(first, *copy);
  return take_up(first.call);
}

// What calls that are over have done is in the copy only if they trained the same model.
void Survival::expect_same_model(const Told& others, const StateCopy& copy) const {
  const World& world = impl_.session().world();
  for (std::int64_t call = 1; call < others.call && call <= std::ssize(memory_.done); ++call) {
    if (memory_.done[static_cast<std::size_t>(call - 1)].model == others.model) continue;
    require(
        !world.newcomer(),
        "[fit] worker {} was started again while the others are in call {} of fit, which trains "
        "another model than call {} did: nobody hands over that one's state; start the whole job "
        "again from its last checkpoint",
        world.worker(), others.call, call);
    require(copy.call != call,
            "[fit] a worker failed at the beginning of call {} of fit, which trains another model "
            "than call {}: the job cannot go on; start it again from its last checkpoint",
            others.call, call);
  }
}

// The call that the others are in may be a later one of the program than this one.
Survival::Meeting Survival::take_up(std::int64_t call) {
  memory_.awaited_call = call_ < call ? call : 0;
  if (call_ < call) return Meeting::Done;
  impl_.session().world().arrive();
  return memory_.copies.front().call == call_ ? Meeting::GoOn : Meeting::BeginFromCopy;
}

// The copy, without the parts of variables.
TensorFile Survival::contents_of_copy(std::map<std::string, Tensor>* parts) const {
  const StateCopy& copy = memory_.copies.front();
  TensorFile contents = parse_safetensors(std::as_bytes(std::span(copy.bytes)), kCopyName);
  for (auto it = contents.tensors.begin(); it != contents.tensors.end();) {
    const bool is_part = it->first.starts_with(kPartsPrefix);
    if (is_part) (*parts)[it->first.substr(kPartsPrefix.size())] = it->second;
    it = is_part ? contents.tensors.erase(it) : std::next(it);
  }
  return contents;
}

void Survival::set_parts(const NamedVariables& variables,
                         const std::map<std::string, Tensor>& parts) {
  Session& session = impl_.session();
  for (const auto& [name, variable] : variables) {
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
}

void Survival::note_restored() {
  const Session& session = impl_.session();
  kept_step_ = session.step;
  kept_ns_ = now_ns();
  if (!recovery_) return;
  recovery_->step = session.step;
  recovery_->lost_steps -= session.step;
  recovery_->workers = session.world().workers();
}

Progress Survival::restore(const std::function<void(const Progress&)>& accept) {
  std::map<std::string, Tensor> parts;
  const TensorFile contents = contents_of_copy(&parts);
  Progress where = *impl_.apply(contents, kCopyName, LoadPurpose::Resume, accept);
  set_parts(impl_.checkpoint_variables(where.mid_epoch()), parts);
  next_ = impl_.session().step + (every_ > 0 ? every_ : kFirstInterval);
  note_restored();
  return where;
}

// A model that was compiled with another optimizer since then keeps that one's fresh state.
void Survival::restore_values() {
  std::map<std::string, Tensor> parts;
  const TensorFile contents = contents_of_copy(&parts);
  Session& session = impl_.session();
  if (iterations_before_ == impl_.options.optimizer.iterations()) {
    impl_.apply(contents, kCopyName, LoadPurpose::Values);
    set_parts(impl_.checkpoint_variables(false), parts);
  } else {
    const NamedVariables weights = with_names(impl_.network->variables());
    for (const auto& [name, variable] : weights) session.set(variable, contents.tensors.at(name));
    set_parts(weights, parts);
    session.step = 0;
  }
  next_ = 0;  // the first copy of this call is taken before its first step
  note_restored();
}

History Survival::history() const {
  History history = before_;
  const StateCopy& copy = memory_.copies.front();
  history.steps = copy.steps;
  history.samples = copy.samples;
  if (history.epochs.size() > copy.epochs) history.epochs.resize(copy.epochs);
  return history;
}

History Survival::history_of_done_call() const {
  if (!impl_.session().world().newcomer()) return before_;
  History history;
  history.epochs = memory_.done[static_cast<std::size_t>(call_ - 1)].epochs;
  history.handed_over = true;
  return history;
}

void Survival::renew(const History& so_far) {
  Session& session = impl_.session();
  World& world = session.world();
  before_ = so_far;
  renewed_ = true;
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
