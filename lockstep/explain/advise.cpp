#include "lockstep/explain/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/explain/attribute.h"
#include "lockstep/explain/what_if.h"

namespace lockstep {
namespace {

constexpr double kWorthIt = 1.05;        // of the run's speed
constexpr double kMuchLost = 0.05;       // of the run's time
constexpr double kMostMemory = 0.9;      // of a device's
constexpr std::int64_t kMostTimes = 16;  // of the batch

double lost_to(const Explanation& explanation, std::initializer_list<Cause> causes) {
  double fraction = 0;
  for (const LostTime& lost : explanation.lost) {
    if (std::ranges::count(causes, lost.cause) > 0) fraction += lost.fraction;
  }
  return fraction;
}

std::string memory_text(double before, double after, double of) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::string text = fmt::format("memory {:.2g} -> {:.2g} GiB", before / kGiB, after / kGiB);
  if (of > 0) text += fmt::format(" of {:.3g}", of / kGiB);
  return text;
}

// Computation of a piece: what does not depend on its samples, and each of them.
PerPiece computation(const MeasuredStep& step, int ranks) {
  return alone_time(step, ranks).compute_s;
}

class Advisor {
 public:
  Advisor(const RunProfile& profile, const MeasuredStep& step, const Explanation& explanation,
          const Adjustable& adjustable)
      : profile_(profile),
        step_(step),
        explanation_(explanation),
        adjustable_(adjustable),
        scenario_(scenario_of(profile, step)),
        now_(simulate(step, scenario_)) {
    const double measured = steady_step_s();
    const double error = measured > 0 ? std::abs(now_.step_s - measured) / measured : 1;
    sure_ = std::clamp(1 - 2 * error, 0.3, 0.95);
    // The time of training steps, without input and waiting for a slow replica.
    steps_fraction_ =
        std::clamp(1 - lost_to(explanation, {Cause::Start, Cause::Validation, Cause::Checkpoint,
                                             Cause::Failures, Cause::Input, Cause::Imbalance}),
                   0.0, 1.0);
    communicates_ = profile.replicas > 1 &&
                    lost_to(explanation, {Cause::Latency, Cause::Bandwidth}) >= kMuchLost;
  }

  std::vector<Advice> all() {
    larger_batch();
    precision();
    short_gradients();
    faster_network();
    buckets();
    one_replica_more();
    slow_replica();
    input();
    outside_steps();
    std::ranges::stable_sort(advice_, std::greater<>(), &Advice::speed_up);
    return std::move(advice_);
  }

 private:
  double steady_step_s() const {
    double seconds = 0, steps = 0;
    for (const StepWindow& window : profile_.windows) {
      seconds += window.step_s * static_cast<double>(window.steps);
      steps += static_cast<double>(window.steps);
    }
    return steps > 0 ? seconds / steps : profile_.step_s;
  }
  // Of the run, if its steps become so many times as fast and the rest stays.
  double of_run(double times) const { return 1 / (1 - steps_fraction_ + steps_fraction_ / times); }

  void add(std::string change, std::string gain, double speed_up, const Adjustable::Flags& flags,
           double sure) {
    if (speed_up < kWorthIt) return;
    advice_.push_back(
        {.change = std::move(change),
         .gain = std::move(gain),
         .speed_up = speed_up,
         .sure = sure,
         .command = adjustable_.command && !flags.empty() ? adjustable_.command(flags) : ""});
  }
  std::string faster(double times) const {
    return fmt::format("{:.2f}x -> {:.2f}x on {} device{}", explanation_.speed_up,
                       explanation_.speed_up * times, profile_.replicas,
                       profile_.replicas == 1 ? "" : "s");
  }
  bool fits(double memory) const {
    return adjustable_.memory_bytes <= 0 || memory <= kMostMemory * adjustable_.memory_bytes;
  }

  // The smallest batch that gives nine tenths of what any useful batch would give. Where it does
  // not fit into memory, in micro-batches of the size that the run had.
  void larger_batch() {
    if (step_.batch <= 0) return;
    if (profile_.replicas > 1 &&
        lost_to(explanation_, {Cause::SmallPieces, Cause::Latency, Cause::Bandwidth, Cause::Host,
                               Cause::Synchronisation}) < kMuchLost) {
      return;
    }
    struct Option {
      std::int64_t batch;
      std::int64_t micro_batches;
      double times;
      double memory;
    };
    std::vector<Option> options;
    for (std::int64_t times = 2; times <= kMostTimes; times *= 2) {
      const std::int64_t batch = step_.batch * times;
      if (adjustable_.useful_batch > 0 &&
          static_cast<double>(batch * profile_.replicas) > adjustable_.useful_batch) {
        break;
      }
      Scenario scenario = scenario_;
      scenario.samples = static_cast<double>(batch);
      const bool whole = fits(memory_bytes(step_, static_cast<double>(batch), profile_.replicas));
      // Each micro-batch would gather its parameters, which the step does not tell apart.
      if (!whole && step_.options.shard == 3) break;
      const MeasuredStep changed =
          whole ? with_batch(step_, batch) : with_accumulation(step_, static_cast<int>(times));
      const SimulatedStep then = simulate(changed, scenario);
      options.push_back({batch, whole ? 1 : times, then.samples_per_s / now_.samples_per_s,
                         memory_bytes(changed, static_cast<double>(batch), profile_.replicas)});
    }
    if (options.empty()) return;
    const double best = std::ranges::max_element(options, {}, &Option::times)->times;
    const auto enough = std::ranges::find_if(
        options, [&](const Option& each) { return each.times - 1 >= 0.9 * (best - 1); });
    const double times = of_run(enough->times);
    Adjustable::Flags flags = {{"--batch-per-replica", std::to_string(enough->batch)}};
    std::string change = fmt::format("batch {} -> {} per replica", step_.batch, enough->batch);
    if (enough->micro_batches > 1) {
      const std::int64_t all = step_.options.accumulate * enough->micro_batches;
      flags.emplace_back("--accumulate", std::to_string(all));
      change += fmt::format(" in {} micro-batches", all);
    }
    const auto batch = static_cast<double>(step_.batch);
    add(std::move(change),
        fmt::format("{}; {}", faster(times),
                    memory_text(memory_bytes(step_, batch, profile_.replicas), enough->memory,
                                adjustable_.memory_bytes)),
        times, flags, sure_);
  }

  void precision() {
    for (const Adjustable::Precision& other : adjustable_.precisions) {
      const double times = of_run(now_.step_s / simulate(other.step, scenario_).step_s);
      const auto batch = static_cast<double>(step_.batch);
      add(fmt::format("precision {} -> {}", step_.precision, other.name),
          fmt::format("{}; {}", faster(times),
                      memory_text(memory_bytes(step_, batch, profile_.replicas),
                                  memory_bytes(other.step, batch, profile_.replicas),
                                  adjustable_.memory_bytes)),
          times, other.flags, sure_);
    }
  }

  // Within a process on CPUs the sums are made in memory, where shorter words cost more than they
  // save.
  void short_gradients() {
    const bool on_wire = step_.device == "cuda" || is_over_a_network(profile_);
    if (!communicates_ || adjustable_.short_words || !on_wire) return;
    const double times =
        of_run(now_.step_s / simulate(with_16_bit_gradients(step_), scenario_).step_s);
    add("gradients that travel as 16-bit numbers", faster(times), times,
        {{"--gradient-dtype", "bfloat16"}}, std::min(sure_, 0.8));
  }

  // The slowest that gives nine tenths of what the fastest would give.
  void faster_network() {
    if (!communicates_ || !is_over_a_network(profile_)) return;
    struct Option {
      const Link* link;
      double times;
    };
    std::vector<Option> options;
    for (const Link& link : known_links()) {
      if (!link.shared_by_host || link.bytes_per_s < 2 * scenario_.between.bytes_per_s) continue;
      Scenario scenario = scenario_;
      scenario.between = link;
      options.push_back({&link, of_run(now_.step_s / simulate(step_, scenario).step_s)});
    }
    if (options.empty()) return;
    const double best = std::ranges::max_element(options, {}, &Option::times)->times;
    const auto enough = std::ranges::find_if(
        options, [&](const Option& each) { return each.times - 1 >= 0.9 * (best - 1); });
    add(fmt::format("a faster network between the hosts ({})", enough->link->name),
        faster(enough->times), enough->times, {}, sure_);
  }

  // The program chooses its own sizes; only a program of the user's own can be given others.
  void buckets() {
    if (!adjustable_.own_program || !communicates_) return;
    double bytes = 0;
    for (const CollectiveProfile& one : profile_.collectives)
      bytes += static_cast<double>(one.bytes);
    double best = 1;
    std::size_t size = 0;
    for (const double part : {1.0, 0.5, 0.25, 0.125, 0.0625}) {
      const auto each = static_cast<std::size_t>(std::max(1.0, bytes * part));
      const double times =
          now_.step_s /
          simulate(with_buckets(step_, {.first_bytes = each, .bytes = each}), scenario_).step_s;
      if (times <= best) continue;
      best = times;
      size = each;
    }
    if (size == 0) return;
    const double times = of_run(best);
    add(fmt::format("buckets of {:.3g} MB (.buckets = {{.bytes = {}}})",
                    static_cast<double>(size) * 1e-6, size),
        faster(times), times, {}, sure_);
  }

  // As fast per sample as now, or faster, with another device that is here.
  void one_replica_more() {
    if (profile_.workers > 1 || adjustable_.devices <= profile_.replicas) return;
    Scenario scenario = scenario_;
    scenario.replicas = profile_.replicas + 1;
    scenario.per_host = scenario.replicas;
    if (profile_.replicas == 1) scenario.within = parse_link("pcie4");
    const double times = of_run(simulate(step_, scenario).samples_per_s / now_.samples_per_s);
    add(fmt::format("{} -> {} replicas", profile_.replicas, scenario.replicas),
        fmt::format("{:.2f}x -> {:.2f}x on {} devices", explanation_.speed_up,
                    explanation_.speed_up * times, scenario.replicas),
        times, {{"--replicas", std::to_string(scenario.replicas)}}, sure_);
  }

  // Pieces by speed, or the batch without the slow one: whichever is faster. A slow replica takes
  // its time even for a small piece, so that beyond some slowness it is better left out.
  void slow_replica() {
    const std::optional<SlowReplica> slow = lockstep::slow_replica(profile_);
    const double lost = lost_to(explanation_, {Cause::Imbalance});
    if (!slow || lost < kMuchLost || slow->why == SlowReplica::Why::Input) return;
    const std::string& name = profile_.by_replica[static_cast<std::size_t>(slow->replica)].device;
    const PerPiece piece = computation(step_, profile_.replicas);
    const double others = profile_.replicas - 1;
    const double samples = scenario_.samples;
    const double all = samples * profile_.replicas;
    const double fast_s = piece.at(samples);
    const double slow_s = slow->times * fast_s;
    // All end together: fixed + p (all - x) / others = times (fixed + p x), for x samples.
    const double p = piece.per_sample;
    const double extra = piece.fixed + p * all / others - slow->times * piece.fixed;
    const double x = p > 0 ? extra / (p / others + slow->times * p) : 0;
    const double balanced_s = slow->times * (piece.fixed + p * x);
    const double without_s = piece.at(all / others);
    // Of the time of the steps that it slowed down, computing is the part that changes.
    const auto of_slowed = [&](double seconds) {
      const double saved = (slow_s - seconds) / std::max(1e-12, slow_s - fast_s) * lost;
      return saved < 1 ? 1 / (1 - saved) : 1;
    };
    const bool can_balance = !adjustable_.balanced && x >= 1 && slow->why != SlowReplica::Why::Work;
    if (can_balance && balanced_s < without_s) {
      const double times = of_slowed(balanced_s);
      add(fmt::format("pieces of the batch that match the speed of each replica ({} is slow)",
                      name),
          faster(times), times, {{"--balance", "auto"}}, std::min(sure_, 0.8));
      return;
    }
    if (profile_.replicas == 1 || slow->why == SlowReplica::Why::Work) return;
    const double times = of_slowed(without_s);
    add(fmt::format("train without {}, and give its samples to the others", name),
        fmt::format("{:.2f}x -> {:.2f}x on {} device{}", explanation_.speed_up,
                    explanation_.speed_up * times, profile_.replicas - 1,
                    profile_.replicas == 2 ? "" : "s"),
        times, without(slow->replica), std::min(sure_, 0.8));
  }

  // The devices of one process by name; workers are started elsewhere.
  Adjustable::Flags without(int replica) const {
    if (profile_.workers > 1) return {};
    std::string devices;
    for (int r = 0; r < profile_.replicas; ++r) {
      if (r == replica) continue;
      devices +=
          (devices.empty() ? "" : ",") + profile_.by_replica[static_cast<std::size_t>(r)].device;
    }
    return {{"--devices", devices},
            {"--replicas", ""},
            {"--batch-per-replica", ""},
            {"--global-batch", std::to_string(profile_.global_batch)}};
  }

  // The stage that limits the input stops to do so: then computation does, or the next stage.
  void input() {
    const double lost = lost_to(explanation_, {Cause::Input});
    if (lost < kMuchLost || profile_.input_limit.empty()) return;
    if (profile_.input_limit == "the consumer") return;
    double limit = 0, next = 0;
    for (const InputStageProfile& stage : profile_.stages) {
      const double load = stage.busy_s / std::max(1, stage.threads);
      const bool limits = stage.name == profile_.input_limit;
      double& which = limits ? limit : next;
      which = std::max(which, load);
      // On more threads it does not take less than on all that there are.
      const bool on_threads = profile_.input_advice.find(".parallel") != std::string::npos &&
                              stage.name.starts_with("map");
      if (limits && on_threads && adjustable_.input_threads > 0) {
        next = std::max(next, stage.busy_s / adjustable_.input_threads);
      }
    }
    // What the next stage takes of the time that was lost to the first.
    const double left = limit > 0 ? std::min(1.0, next / limit) : 0;
    const double saved = std::min(lost, 1 - left);
    const double times = 1 / (1 - std::max(0.0, saved));
    add(profile_.input_advice.empty()
            ? fmt::format("a faster input: {} limits it", profile_.input_limit)
            : profile_.input_advice,
        faster(times), times, {}, 0.7);
  }

  // Saving and callbacks: what is done half as often costs half.
  void outside_steps() {
    const double checkpoint = lost_to(explanation_, {Cause::Checkpoint});
    if (checkpoint >= kMuchLost) {
      const double times = 1 / (1 - checkpoint / 2);
      add("checkpoints half as often", faster(times), times, half_as_often(), 0.9);
    }
    const double host = lost_to(explanation_, {Cause::Host});
    const double callbacks = profile_.seconds > 0 ? profile_.callback_s / profile_.seconds : 0;
    if (host >= kMuchLost && callbacks > host / 2) {
      const double times = 1 / (1 - std::min(callbacks, host));
      add(fmt::format("callbacks that do less: they took {:.1f} s", profile_.callback_s),
          faster(times), times, {}, 0.9);
    }
  }

  // "--checkpoint-every 500", "10m": a number and a unit.
  Adjustable::Flags half_as_often() const {
    const std::string every = adjustable_.value ? adjustable_.value("--checkpoint-every") : "";
    const std::size_t digits = every.find_first_not_of("0123456789");
    const std::string number = every.substr(0, digits);
    if (number.empty() || number.size() > 9) return {};
    const std::string unit = digits == std::string::npos ? "" : every.substr(digits);
    return {{"--checkpoint-every", std::to_string(2 * std::stoll(number)) + unit}};
  }

  const RunProfile& profile_;
  const MeasuredStep& step_;
  const Explanation& explanation_;
  const Adjustable& adjustable_;
  Scenario scenario_;
  SimulatedStep now_;
  double sure_ = 0;
  double steps_fraction_ = 1;
  bool communicates_ = false;  // exposed communication is worth a change
  std::vector<Advice> advice_;
};

}  // namespace

Scenario scenario_of(const RunProfile& profile, const MeasuredStep& step) {
  Scenario scenario;
  scenario.replicas = profile.replicas;
  scenario.per_host = replicas_per_host(profile);
  const double pieces = static_cast<double>(profile.global_batch) / profile.replicas;
  scenario.samples = pieces > 0 ? pieces : static_cast<double>(step.batch);
  if (profile.replicas == 1) return scenario;
  if (const std::optional<LinkFit> link = link_of(profile)) {
    const bool between = scenario.per_host < profile.replicas;
    const double ends = between ? profile.workers : profile.replicas;
    // A rank sends and receives (n - 1) / n of what it contributes, twice; each time there is one
    // latency between hosts of CPUs (collective_time.h: Direct), and n - 1 around a ring.
    const bool direct = between && step.device != "cuda";
    const double per_byte = link->s_per_byte / (2 * (ends - 1) / ends);
    Link measured{.name = "the network of the run",
                  .latency_s = link->latency_s / (direct ? 2 : 2 * (ends - 1)),
                  .bytes_per_s = per_byte > 0 ? 1 / per_byte : 1e12,
                  .shared_by_host = true};
    (between ? scenario.between : scenario.within) = measured;
  } else {
    scenario.between = parse_link("10Gbit");
    scenario.within = parse_link("pcie4");
  }
  return scenario;
}

std::vector<Advice> advise(const RunProfile& profile, const MeasuredStep& step,
                           const Explanation& explanation, const Adjustable& adjustable) {
  if (profile.steps == 0 || profile.seconds <= 0) return {};
  return Advisor(profile, step, explanation, adjustable).all();
}

}  // namespace lockstep
