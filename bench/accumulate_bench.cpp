// What accumulation costs: a step of k micro-batches against k separate forward and backward passes
// of which the last is followed by the update. They take turns, so that a slow moment of the
// machine affects both. CPU time is shown, too: on a machine that others use, it varies much less.
//
//   OMP_NUM_THREADS=1 accumulate_bench   without threads that wait for one another
//   accumulate_bench [micro-batches (4)] [rounds (31)] [network (all): lenet, mlp or cnn]
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/layers.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/applications.h"
#include "lockstep/train/model_step.h"

namespace lockstep {
namespace {

// Seconds.
struct Times {
  double wall = 0;
  double cpu = 0;  // of all threads

  Times& operator+=(const Times& other) {
    wall += other.wall;
    cpu += other.cpu;
    return *this;
  }
};

double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Batch make_noise(const Shape& sample, std::int64_t size) {
  std::vector<std::int64_t> dims(sample.dims().begin(), sample.dims().end());
  dims.insert(dims.begin(), size);
  RandomSequence random(3, 1);
  Batch batch;
  batch.inputs.emplace_back(DType::F32, Shape(dims));
  for (float& value : batch.inputs[0].values<float>()) value = random.uniform() - 0.5F;
  batch.labels = Tensor(DType::I32, Shape{size});
  for (std::int32_t& label : batch.labels.values<std::int32_t>()) {
    label = static_cast<std::int32_t>(random.below(10));
  }
  return batch;
}

// A model in its own session, with a step on a batch in so many micro-batches.
class Contender {
 public:
  Contender(std::shared_ptr<Network> network, Batch batch)
      : network_(std::move(network)), batch_(std::move(batch)) {}

  void compile_step_of(std::int64_t micro_batches) {
    step_ = &compile_step(cache_, session_, recipe(),
                          request_step(session_.world(), optimizer_, batch_.step(StepMode::Train),
                                       split_evenly(batch_.size(), 1), micro_batches));
  }
  // Forward and backward pass; gradients are outputs, which nothing reads.
  void compile_passes() {
    Graph graph;
    const Value x = graph.input("x", {batch_.inputs[0].dtype(), batch_.inputs[0].shape()});
    const Value y = graph.input("y", {batch_.labels.dtype(), batch_.labels.shape()});
    const std::vector<ValueType> types = {x.type()};
    network_->ensure_built(types);
    const std::vector<Value> outputs =
        network_->call_all(std::vector{x}, {.training = true, .seed = 0});
    const LossPair loss = loss_(y, outputs[0], {});
    mean_->update(loss.sum, loss.weight, {});
    std::vector<Value> parameters;
    for (const VariableRef& variable : network_->trainable_variables()) {
      parameters.push_back(graph.variable(variable));
    }
    const std::vector<Value> found = gradients(loss.sum, parameters);
    for (std::size_t i = 0; i < found.size(); ++i) graph.output(fmt::format("g{}", i), found[i]);
    std::vector<CompileRequest> requests;
    requests.push_back({.rank = 0, .graph = std::move(graph)});
    passes_ = std::move(session_.compile(std::move(requests)).front());
  }

  Times run_steps(int count) {
    return timed(count, [&] { run_step(*step_, session_, batch_); });
  }
  Times run_passes_alone(int count) {
    return timed(count, [&] {
      passes_->input("x").copy_from(batch_.inputs[0]);
      passes_->input("y").copy_from(batch_.labels);
      passes_->run();
    });
  }

 private:
  template <class F>
  static Times timed(int count, F&& f) {
    const std::int64_t begin = now_ns();
    const double cpu = cpu_seconds();
    for (int i = 0; i < count; ++i) f();
    return {.wall = static_cast<double>(now_ns() - begin) * 1e-9, .cpu = cpu_seconds() - cpu};
  }

  StepRecipe recipe() {
    return {.network = *network_,
            .loss = loss_,
            .optimizer = optimizer_,
            .loss_mean = mean_,
            .metrics = {},
            .weighted_metrics = {},
            .accumulators = &accumulators_};
  }

  Session session_{SessionOptions{}};
  std::shared_ptr<Network> network_;
  Batch batch_;
  Loss loss_ = SparseCategoricalCrossentropy({.from_logits = true});
  Optimizer optimizer_ = Adam();
  Metric mean_ = LossMean("loss");
  Accumulators accumulators_;
  StepCache cache_;
  CompiledStep* step_ = nullptr;
  std::unique_ptr<Executor> passes_;
};

void compare(const char* name, const std::function<std::shared_ptr<Network>()>& make,
             const Shape& sample, std::int64_t micro_batch, std::int64_t micro_batches,
             int rounds) {
  Contender accumulating(make(), make_noise(sample, micro_batch * micro_batches));
  accumulating.compile_step_of(micro_batches);
  Contender plain(make(), make_noise(sample, micro_batch));
  plain.compile_step_of(1);  // decides the layouts of variables
  plain.compile_passes();
  // Each step of its own, so that an update finds as much of its memory in the caches as one after
  // accumulation does.
  const auto separate = [&](int steps) {
    Times times;
    for (int step = 0; step < steps; ++step) {
      times += plain.run_passes_alone(static_cast<int>(micro_batches - 1));
      times += plain.run_steps(1);
    }
    return times;
  };
  const double once = accumulating.run_steps(1).wall + accumulating.run_steps(1).wall;
  const int steps = std::clamp(static_cast<int>(0.2 / once), 1, 1000);
  separate(steps);
  std::vector<double> ratios, cpu_ratios, with, without;
  for (int round = 0; round < rounds; ++round) {
    const bool first = round % 2 == 0;
    const Times a = first ? accumulating.run_steps(steps) : separate(steps);
    const Times b = first ? separate(steps) : accumulating.run_steps(steps);
    with.push_back((first ? a : b).wall);
    without.push_back((first ? b : a).wall);
    ratios.push_back(with.back() / without.back());
    cpu_ratios.push_back((first ? a : b).cpu / (first ? b : a).cpu);
  }
  std::ranges::sort(ratios);
  const double cost = 100 * (median_of(ratios) - 1);
  fmt::print(
      "  {:<6} {} × {:<3} {:9.3f} ms, separate passes {:9.3f} ms: {:+.2f}% (rounds from {:+.1f}% "
      "to {:+.1f}%), CPU time {:+.2f}%   goal at most 2%: {}\n",
      name, micro_batches, micro_batch, median_of(with) * 1e3 / steps,
      median_of(without) * 1e3 / steps, cost, 100 * (ratios[ratios.size() / 10] - 1),
      100 * (ratios[ratios.size() - 1 - ratios.size() / 10] - 1), 100 * (median_of(cpu_ratios) - 1),
      cost <= 2 ? "holds" : "MISSED");
}

void run_all(std::int64_t micro_batches, int rounds, const std::string& only) {
  fmt::print(
      "a step of {} micro-batches against as many separate forward and backward passes, the "
      "last with the update (medians of {} interleaved rounds)\n",
      micro_batches, rounds);
  const auto lenet = [] {
    return Network::sequential(
        {Conv2D({.filters = 6, .kernel_size = 5, .padding = "same", .activation = "relu"}),
         MaxPooling2D(), Conv2D({.filters = 16, .kernel_size = 5, .activation = "relu"}),
         MaxPooling2D(), Flatten(), Dense({.units = 120, .activation = "relu"}),
         Dense({.units = 84, .activation = "relu"}), Dense({.units = 10})},
        "lenet");
  };
  const auto mlp = [] {
    return Network::sequential({Flatten(), Dense({.units = 512, .activation = "relu"}),
                                Dense({.units = 512, .activation = "relu"}), Dense({.units = 10})},
                               "mlp");
  };
  const auto cnn = [] {
    std::vector<Layer> layers;
    for (const std::int64_t filters : {32, 32, 64, 64, 128, 128}) {
      layers.emplace_back(Conv2D({.filters = filters, .padding = "same", .use_bias = false}));
      layers.emplace_back(BatchNormalization());
      layers.emplace_back(Activation("relu"));
      if (layers.size() % 6 == 0) layers.emplace_back(MaxPooling2D());
    }
    layers.emplace_back(GlobalAveragePooling2D());
    layers.emplace_back(Dense({.units = 10}));
    return Network::sequential(std::move(layers), "cnn");
  };
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  if (wanted("lenet")) compare("lenet", lenet, {28, 28, 1}, 64, micro_batches, rounds);
  if (wanted("mlp")) compare("mlp", mlp, {28, 28, 1}, 256, micro_batches, rounds);
  if (wanted("mlp")) compare("mlp", mlp, {28, 28, 1}, 32, micro_batches, rounds);
  if (wanted("cnn")) compare("cnn", cnn, {32, 32, 3}, 16, micro_batches, rounds);
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  const std::int64_t micro_batches = count > 1 ? std::atoll(arguments[1]) : 4;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 31;
  if (micro_batches < 2 || rounds < 1) {
    fmt::print("accumulate_bench [micro-batches from 2 on] [rounds] [network]\n");
    return 2;
  }
  lockstep::run_all(micro_batches, rounds, count > 3 ? arguments[3] : "");
  return 0;
}
