#include "lockstep/cli/core_probe.h"

#include <sched.h>

#include <algorithm>
#include <barrier>
#include <limits>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/vectorized.h"
#include "lockstep/cli/format.h"
#include "lockstep/device/cpu/affinity.h"
#include "lockstep/profile/recorder.h"

namespace lockstep::cli {
namespace {

using Floats = float __attribute__((vector_size(64)));

// Eight independent sums keep every FMA unit busy.
LOCKSTEP_VECTORIZED void compute(std::int64_t times) {
  const Floats f = Floats{} + 0.999f;
  Floats s0{}, s1{}, s2{}, s3{}, s4{}, s5{}, s6{}, s7{};
  for (std::int64_t i = 0; i < times; ++i) {
    s0 = s0 * f + f;
    s1 = s1 * f + f;
    s2 = s2 * f + f;
    s3 = s3 * f + f;
    s4 = s4 * f + f;
    s5 = s5 * f + f;
    s6 = s6 * f + f;
    s7 = s7 * f + f;
  }
  // Keeps the compiler from dropping the loop.
  volatile float kept = 0;
  for (const Floats& sum : {s0, s1, s2, s3, s4, s5, s6, s7}) kept = kept + sum[0];
}

// If the system refuses, the thread stays where it is.
void move_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  static_cast<void>(sched_setaffinity(0, sizeof(set), &set));
}

double ms_since(std::int64_t begin) {
  return static_cast<double>(now_ns() - begin) * 1e-6;
}

// How many iterations take a core this long, from the fastest of a few tries.
std::int64_t work_of(double ms) {
  ensure(ms > 0, "[core probe] a piece of work must take some time, not {} ms", ms);
  constexpr std::int64_t kTry = 100'000;
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const std::int64_t begin = now_ns();
    compute(kTry);
    fastest = std::min(fastest, ms_since(begin));
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(kTry * ms / fastest));
}

// The median time of a piece on these cores, from the common start to the end of the last one.
double piece_ms(const std::vector<int>& cores, std::int64_t work, int pieces) {
  std::barrier together(static_cast<std::ptrdiff_t>(cores.size()));
  std::vector<double> times;
  const auto run = [&](std::size_t i) {
    move_to(cores[i]);
    for (int piece = 0; piece < pieces; ++piece) {
      together.arrive_and_wait();
      const std::int64_t begin = now_ns();
      compute(work);
      together.arrive_and_wait();
      if (i == 0) times.push_back(ms_since(begin));
    }
  };
  const KeepAffinity keep;
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < cores.size(); ++i) others.emplace_back(run, i);
  run(0);
  others.clear();
  return median(times);
}

}  // namespace

CoreProbe::CoreProbe(std::vector<std::vector<int>> cores, double piece_ms)
    : first_(cores.front()), work_(work_of(piece_ms)) {
  for (const std::vector<int>& own : cores) all_.insert(all_.end(), own.begin(), own.end());
}

void CoreProbe::measure(int pieces) {
  const double alone = piece_ms(first_, work_, pieces);
  ratios_.push_back(alone / piece_ms(all_, work_, pieces));
}

double CoreProbe::at_once() const {
  return median(ratios_);
}

}  // namespace lockstep::cli
