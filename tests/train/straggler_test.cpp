// Which worker is named as the one that the others wait for, by numbers.
#include "lockstep/train/straggler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/random.h"

namespace lockstep {
namespace {

constexpr int kWindow = 32;

// A watch over steps in which worker w is busy for busy(step, w) seconds.
template <class Busy>
StragglerWatch watched(int workers, int steps, const Busy& busy,
                       const std::vector<std::int64_t>& rows = {}) {
  StragglerWatch watch(workers);
  for (int step = 0; step < steps; ++step) {
    std::vector<WorkerStep> all;
    double longest = 0;
    for (int w = 0; w < workers; ++w) {
      all.push_back(
          {.busy_s = busy(step, w), .rows = rows.empty() ? 8 : rows[static_cast<std::size_t>(w)]});
      longest = std::max(longest, all.back().busy_s);
    }
    watch.observe(all, longest);
  }
  return watch;
}

// From -1 to 1.
double noise(std::uint64_t seed, int step, int worker) {
  const std::uint64_t bits = combine(seed, static_cast<std::uint64_t>(step * 64 + worker));
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

TEST(Straggler, AWorkerThatIsSlowThroughoutIsNamedWithWhatItCosts) {
  const StragglerWatch watch =
      watched(4, kWindow, [](int, int w) { return w == 2 ? 0.014 : 0.010; });
  ASSERT_TRUE(watch.now().has_value());
  EXPECT_EQ(watch.now()->text(),
            "worker 2 is 1.4x slower than the others: 29% of each step is spent waiting for it");
  ASSERT_EQ(watch.all().size(), 1U);
  EXPECT_EQ(watch.all().front().steps, kWindow);
  EXPECT_NEAR(watch.all().front().seconds, kWindow * 0.004, 1e-9);
}

TEST(Straggler, OneOfTwoIsNamedToo) {
  const StragglerWatch watch =
      watched(2, kWindow, [](int, int w) { return w == 0 ? 0.012 : 0.010; });
  ASSERT_TRUE(watch.now().has_value());
  EXPECT_EQ(watch.now()->worker, 0);
}

TEST(Straggler, NobodyIsNamedBeforeAWholeWindow) {
  EXPECT_FALSE(watched(2, kWindow - 1, [](int, int w) { return w == 0 ? 0.05 : 0.01; }).now());
}

TEST(Straggler, NoiseNamesNobody) {
  for (const int workers : {2, 3, 8, 40}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const StragglerWatch watch = watched(workers, 500, [&](int step, int w) {
        // Sometimes a step takes three times as long.
        const double hiccup = noise(seed + 1000, step, w) > 0.9 ? 0.02 : 0;
        return 0.01 * (1 + 0.08 * noise(seed, step, w)) + hiccup;
      });
      EXPECT_TRUE(watch.all().empty())
          << workers << " workers, seed " << seed << ": " << watch.all().front().text();
    }
  }
}

TEST(Straggler, AWorkerThatIsSlowForAWhileOnlyIsNotNamed) {
  const StragglerWatch watch = watched(3, 200, [](int step, int w) {
    const bool slow = w == 1 && step % 40 < 20;
    return slow ? 0.03 : 0.01;
  });
  EXPECT_TRUE(watch.all().empty());
}

TEST(Straggler, IsForgottenWhenItIsAsFastAsTheOthersAgain) {
  const StragglerWatch watch = watched(
      3, 4 * kWindow, [](int step, int w) { return w == 1 && step < kWindow ? 0.02 : 0.01; });
  EXPECT_FALSE(watch.now().has_value());
  ASSERT_EQ(watch.all().size(), 1U);  // the report still names it
  EXPECT_EQ(watch.all().front().worker, 1);
}

TEST(Straggler, AWorkerWithMoreRowsIsNotNamedForThem) {
  const auto by_rows = [](int, int w) { return w < 2 ? 0.030 : 0.012; };
  EXPECT_TRUE(watched(3, kWindow, by_rows, {3, 3, 1}).all().empty());
  // One that has fewer rows, and takes longer for each because of what every step costs.
  EXPECT_TRUE(watched(3, kWindow, [](int, int w) { return w < 2 ? 0.010 : 0.009; }, {3, 3, 1})
                  .all()
                  .empty());
}

TEST(Straggler, StepsThatSayNothingAreLeftOut) {
  const StragglerWatch watch = watched(2, 2 * kWindow, [](int step, int w) {
    if (step % 2 == 0) return w == 0 ? -1.0 : 100.0;
    return 0.01;
  });
  EXPECT_TRUE(watch.all().empty());
}

}  // namespace
}  // namespace lockstep
