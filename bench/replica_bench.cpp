// Two replicas, or two models, on two logical CPUs.
//
//   replica_bench balance    one replica slowed down by other work on its core: even pieces and
//                            balance = auto, compared with two independent models at once
//   replica_bench many       two models trained at once by train_many, compared with each alone
//                            and with two independent processes
//   replica_bench recording  a step with spans against one without, and what a run's profile takes
#include <fmt/core.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/random.h"
#include "lockstep/lockstep.h"
#include "lockstep/runtime/session.h"
#include "lockstep/train/model_step.h"
#include "lockstep/train/run_profiler.h"

namespace lockstep {
namespace {

constexpr int kRounds = 5;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::shared_ptr<Network> make_lenet() {
  return Network::sequential(
      {Conv2D({.filters = 32, .kernel_size = 3, .padding = "same", .activation = "relu"}),
       MaxPooling2D(),
       Conv2D({.filters = 64, .kernel_size = 3, .padding = "same", .activation = "relu"}),
       MaxPooling2D(), Flatten(), Dense({.units = 128, .activation = "relu"}),
       Dense({.units = 10})},
      "lenet");
}

Batch make_batch(std::int64_t samples) {
  Batch batch{.inputs = {Tensor(DType::F32, {samples, 28, 28, 1})},
              .labels = Tensor(DType::I32, {samples}),
              .sample_weight = {}};
  RandomSequence random(1, 1);
  for (float& value : batch.inputs[0].values<float>()) value = random.uniform();
  for (std::int32_t& label : batch.labels.values<std::int32_t>()) {
    label = static_cast<std::int32_t>(random.below(10));
  }
  return batch;
}

// Occupies half of a core while it exists: busy and idle slices alternate, much shorter than a
// step, so that a replica on that core is half as fast in every step. A thread that is always busy
// would be scheduled in slices as long as a step, and slow down some steps but not others.
class Burner {
 public:
  explicit Burner(int core)
      : thread_([this, core] {
          cpu_set_t set;
          CPU_ZERO(&set);
          CPU_SET(core, &set);
          sched_setaffinity(0, sizeof(set), &set);
          prctl(PR_SET_TIMERSLACK, 1UL);
          const sched_param first{.sched_priority = 1};
          if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) {
            fmt::print(stderr, "no permission for SCHED_FIFO: the load may not be half a core\n");
          }
          timespec next;
          clock_gettime(CLOCK_MONOTONIC, &next);
          while (!stop_) {
            for (const std::int64_t end = now_ns() + kSlice_ns; now_ns() < end;) {
            }
            next.tv_nsec += 2 * kSlice_ns;
            if (next.tv_nsec >= 1'000'000'000) {
              next.tv_nsec -= 1'000'000'000;
              ++next.tv_sec;
            }
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr);
          }
        }) {}
  ~Burner() {
    stop_ = true;
    thread_.join();
  }

 private:
  static constexpr std::int64_t kSlice_ns = 200'000;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Dataset make_batches(std::int64_t batch) {
  const Batch samples = make_batch(batch);
  return Dataset::from_tensor_slices({samples.inputs[0], samples.labels}).batch(batch).repeat();
}

// A fit over `steps` steps, after as many to warm up.
History fit(const Strategy& strategy, std::int64_t batch, std::int64_t steps) {
  Model model(make_lenet());
  model.compile({.strategy = strategy,
                 .optimizer = Adam(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const Dataset batches = make_batches(batch);
  model.fit(batches, {.steps_per_epoch = steps, .verbose = 0});
  return model.fit(batches,
                   {.epochs = 2, .initial_epoch = 1, .steps_per_epoch = steps, .verbose = 0});
}

// In samples per second.
double fit_speed(const Strategy& strategy, std::int64_t batch, std::int64_t steps) {
  const History history = fit(strategy, batch, steps);
  return static_cast<double>(history.samples) / history.seconds;
}

// Samples per second of each of two devices that train independent models at the same time. A
// device alone may be faster: it does not share memory bandwidth and clock.
std::array<double, 2> speeds_at_once(std::int64_t batch) {
  constexpr std::int64_t kSteps = 10;  // per call of fit
  constexpr double kWarmUp = 2;        // seconds
  constexpr double kMeasured = 4;
  std::array<double, 2> speeds = {};
  const auto train = [&](std::size_t device) {
    Model model(make_lenet());
    model.compile({.strategy = OneDeviceStrategy(
                       {.device = fmt::format("cpu:{}", device), .logical_cpus = 2}),
                   .optimizer = Adam(),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true})});
    const Dataset batches = make_batches(batch);
    const std::int64_t start = now_ns();
    const auto seconds = [&] { return static_cast<double>(now_ns() - start) * 1e-9; };
    double begin = 0;
    double samples = 0;
    while (begin == 0 || seconds() - begin < kMeasured) {
      model.fit(batches, {.steps_per_epoch = kSteps, .verbose = 0});
      if (begin > 0) {
        samples += static_cast<double>(kSteps * batch);
        speeds[device] = samples / (seconds() - begin);
      } else if (seconds() > kWarmUp) {
        begin = seconds();
      }
    }
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  return speeds;
}

void balance() {
  const std::vector<std::string> names{"cpu:0", "cpu:1"};
  constexpr std::int64_t kPerReplica = 64;
  constexpr std::int64_t kSteps = 150;
  const std::vector<int> cores = available_cores();
  if (cores.size() < 2) {
    fmt::print("balance needs two cores\n");
    return;
  }
  const int last = cores.back();
  std::vector<double> apart0, apart1, even, automatic, waiting, planning;
  for (int round = 0; round < kRounds; ++round) {
    const Burner burner(last);
    const auto [first, second] = speeds_at_once(kPerReplica);
    apart0.push_back(first);
    apart1.push_back(second);
    even.push_back(fit_speed(MirroredStrategy({.devices = names}), 2 * kPerReplica, kSteps));
    const History balanced = fit(MirroredStrategy({.devices = names, .balance = Balance::Auto}),
                                 2 * kPerReplica, kSteps);
    automatic.push_back(static_cast<double>(balanced.samples) / balanced.seconds);
    waiting.push_back(balanced.attribution.wait);
    planning.push_back(balanced.attribution.start);
  }
  const double sum = median(apart0) + median(apart1);
  fmt::print("LeNet, 2 × batch {}, other work takes half of cpu:1's core ({} rounds, medians)\n",
             kPerReplica, kRounds);
  fmt::print(
      "  cpu:0           {:8.0f} samples/s\n  cpu:1           {:8.0f} samples/s, each with its own "
      "model\n",
      median(apart0), median(apart1));
  fmt::print("  even pieces     {:8.0f} samples/s, {:.2f} of their sum\n", median(even),
             median(even) / sum);
  fmt::print("  balance = auto  {:8.0f} samples/s, {:.2f} of their sum   goal 0.9: {}\n",
             median(automatic), median(automatic) / sum,
             median(automatic) >= 0.9 * sum ? "holds" : "MISSED");
  fmt::print("                  waiting {:.1f}%, planning pieces of other sizes {:.1f}%\n",
             100 * median(waiting), 100 * median(planning));
}

// Samples per second of one model on one of two logical CPUs while the other is idle.
double alone_speed(const std::string& device) {
  constexpr std::int64_t kBatch = 64;
  constexpr std::int64_t kSteps = 150;
  return fit_speed(OneDeviceStrategy({.device = device, .logical_cpus = 2}), kBatch, kSteps);
}

// alone_speed in another process, which prints it.
class OtherProcess {
 public:
  explicit OtherProcess(const std::string& device)
      : output_(popen(fmt::format("'{}' {}",
                                  std::filesystem::read_symlink("/proc/self/exe").string(), device)
                          .c_str(),
                      "r"),
                pclose) {}
  double speed() {
    char line[64] = {};
    if (!output_ || !std::fgets(line, sizeof(line), output_.get())) {
      throw Error("the other process printed nothing");
    }
    return std::strtod(line, nullptr);
  }

 private:
  std::unique_ptr<FILE, int (*)(FILE*)> output_;
};

void many() {
  std::vector<double> alone, together, processes;
  for (int round = 0; round < kRounds; ++round) {
    alone.push_back(alone_speed("cpu:0") + alone_speed("cpu:1"));

    std::vector<TrainJob> jobs;
    for (int job = 0; job < 2; ++job) {
      Model model(make_lenet());
      model.compile(
          {.optimizer = Adam(), .loss = SparseCategoricalCrossentropy({.from_logits = true})});
      // The first epoch warms up, the second is timed.
      jobs.push_back({.model = model,
                      .batches = make_batches(64),
                      .fit = {.epochs = 2, .steps_per_epoch = 150}});
    }
    double sum = 0;
    for (const TrainResult& result : train_many(jobs, {.devices = {"cpu:0", "cpu:1"}})) {
      if (!result.history) throw Error(result.error);
      sum += result.history->epochs.back().logs.at("samples_per_s");
    }
    together.push_back(sum);

    OtherProcess one("cpu:0"), other("cpu:1");
    processes.push_back(one.speed() + other.speed());
  }
  fmt::print("LeNet, batch 64, a model on each of two cores ({} rounds, medians of the sums)\n",
             kRounds);
  fmt::print("  one after the other        {:8.0f} samples/s\n", median(alone));
  fmt::print("  train_many, both at once   {:8.0f} samples/s, {:.3f} of that\n", median(together),
             median(together) / median(alone));
  fmt::print(
      "  two processes at once      {:8.0f} samples/s, {:.3f} of that: the machine's limit\n",
      median(processes), median(processes) / median(alone));
}

// A training step of a model in its own session.
class Timed {
 public:
  Timed(std::shared_ptr<Network> network, Batch batch, bool record)
      : session_({.record = record}), network_(std::move(network)), batch_(std::move(batch)) {
    const StepRecipe recipe{.network = *network_,
                            .loss = loss_,
                            .optimizer = optimizer_,
                            .loss_mean = mean_,
                            .metrics = {},
                            .weighted_metrics = {},
                            .seed = 0};
    step_ = &compile_step(cache_, session_, recipe,
                          request_step(session_.world(), optimizer_, batch_.step(StepMode::Train),
                                       split_evenly(batch_.size(), 1)));
  }
  // Seconds of `count` steps.
  double run(int count) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < count; ++i) run_step(*step_, session_, batch_);
    return static_cast<double>(now_ns() - begin) * 1e-9;
  }

 private:
  Session session_;
  std::shared_ptr<Network> network_;
  Batch batch_;
  Loss loss_ = SparseCategoricalCrossentropy({.from_logits = true});
  Optimizer optimizer_ = Adam();
  Metric mean_ = LossMean("loss");
  StepCache cache_;
  CompiledStep* step_ = nullptr;
};

void recording() {
  const auto make_mlp = [] {
    return Network::sequential(
        {Flatten(), Dense({.units = 128, .activation = "relu"}), Dense({.units = 10})}, "mlp");
  };
  fmt::print("a step with spans against one without (medians of interleaved runs)\n");
  const auto compare = [](const char* name, auto make, std::int64_t batch, int steps) {
    Timed on(make(), make_batch(batch), true);
    Timed off(make(), make_batch(batch), false);
    on.run(steps);
    off.run(steps);
    std::vector<double> ratios, with, without;
    for (int round = 0; round < 41; ++round) {
      const bool first = round % 2 == 0;
      const double a = (first ? on : off).run(steps);
      const double b = (first ? off : on).run(steps);
      with.push_back(first ? a : b);
      without.push_back(first ? b : a);
      ratios.push_back(with.back() / without.back());
    }
    const double cost = 100 * (median(ratios) - 1);
    fmt::print("  {:<6} {:.4f} ms with, {:.4f} ms without: {:+.2f}%   goal under 1%: {}\n", name,
               median(with) * 1e3 / steps, median(without) * 1e3 / steps, cost,
               cost < 1 ? "holds" : "MISSED");
  };
  compare("mlp", make_mlp, 32, 300);
  compare("lenet", make_lenet, 64, 4);
  // What fit keeps of each step for `explain`, besides the spans.
  constexpr std::int64_t kSteps = 1'000'000;
  constexpr std::int64_t kStep_ns = 100'000;  // 10,000 steps per second
  Session session({.record = true});
  RunProfiler profiler(session);
  profiler.begin();
  const std::int64_t begin = now_ns();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t samples[] = {32 * step};
    profiler.step_done(step, step * kStep_ns, (step + 1) * kStep_ns, samples);
  }
  const double each_ns = static_cast<double>(now_ns() - begin) / static_cast<double>(kSteps);
  const double cost = 100 * each_ns / static_cast<double>(kStep_ns);
  fmt::print(
      "  the profile of a run: {:.0f} ns per step, {:.3f}% at 10,000 steps/s   goal under 1%: {}\n",
      each_ns, cost, cost < 1 ? "holds" : "MISSED");
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  const char* const what = count == 2 ? arguments[1] : "";
  if (std::strcmp(what, "balance") == 0) {
    lockstep::balance();
  } else if (std::strcmp(what, "recording") == 0) {
    lockstep::recording();
  } else if (std::strcmp(what, "many") == 0) {
    lockstep::many();
  } else if (std::strncmp(what, "cpu:", 4) == 0) {
    fmt::print("{}\n", lockstep::alone_speed(what));
  } else {
    fmt::print(stderr, "replica_bench: name balance, many or recording\n");
    return 2;
  }
  return 0;
}
