// How long a checkpoint holds up training, in proportion to the time of writing it.
//
//   checkpoint_bench [FOLDER [MIB]]   saves a model of about MIB mebibytes, with its optimizer's
//                                     state, to FOLDER several times (. and 256)
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The least disturbed one.
double fastest(const std::vector<double>& values) {
  return *std::ranges::min_element(values);
}

void run(const std::filesystem::path& folder, std::int64_t mebibytes) {
  constexpr int kSaves = 12;
  constexpr std::int64_t kLayers = 4;
  // Adam has two values for each weight.
  const double weights = static_cast<double>(mebibytes << 20) / (3 * sizeof(float));
  const auto width = static_cast<std::int64_t>(std::sqrt(weights / kLayers));
  std::vector<Layer> layers;
  for (std::int64_t i = 0; i < kLayers; ++i) layers.push_back(Dense({.units = width}));
  Sequential model(layers);
  model.compile({.optimizer = Adam(), .loss = MeanSquaredError()});
  const Tensor x(DType::F32, {1, width});
  const Tensor y(DType::F32, {1, width});
  model.fit(x, y, {.epochs = 1, .verbose = 0});

  const std::filesystem::path file = folder / "checkpoint_bench.safetensors";
  ModelImpl& impl = impl_of(model);
  std::vector<double> held;
  std::vector<double> written;
  for (int i = 0; i < kSaves; ++i) {
    const Clock::time_point begin = Clock::now();
    impl.save({.file = file, .keep_good = true}, {.asynchronous = true});
    held.push_back(seconds_since(begin));
    impl.finish_writing();
    written.push_back(seconds_since(begin) - held.back());
  }
  const double size = static_cast<double>(std::filesystem::file_size(file)) / (1 << 20);
  std::filesystem::remove(file);
  fmt::print("{:.0f} MiB: training is held up {:.1f} ms, writing takes {:.1f} ms: {:.1f} %\n", size,
             fastest(held) * 1e3, fastest(written) * 1e3, 100 * fastest(held) / fastest(written));
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  const std::filesystem::path folder = count > 1 ? arguments[1] : ".";
  lockstep::run(folder, count > 2 ? std::stoll(arguments[2]) : 256);
}
