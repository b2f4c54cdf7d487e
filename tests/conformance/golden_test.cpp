// Compares some of the cases with the peers' stored results in golden/, so that no peer needs to be
// installed. `scripts/conformance --write-golden` rewrites those files.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/driver/case.h"

namespace conformance {
namespace {

double epsilon_of(ls::DType dtype) {
  switch (dtype) {
    case ls::DType::F32:
      return std::ldexp(1.0, -23);
    case ls::DType::F64:
      return std::ldexp(1.0, -52);
    case ls::DType::F16:
      return std::ldexp(1.0, -10);
    default:
      return 0.0;
  }
}

// The same tolerance as difference() in case.py.
void expect_near(const Case& c, const std::string& name, const ls::Tensor& got,
                 const ls::Tensor& want) {
  ASSERT_EQ(got.shape(), want.shape()) << c.name << ", " << name;
  const double epsilon = std::max(epsilon_of(got.dtype()), epsilon_of(want.dtype()));
  const ls::Tensor mine = got.cast(ls::DType::F64), peers = want.cast(ls::DType::F64);
  double scale = 0;
  for (const double value : peers.values<double>()) {
    if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
  }
  for (std::size_t i = 0; i < mine.values<double>().size(); ++i) {
    const double a = mine.values<double>()[i], b = peers.values<double>()[i];
    const double bound = c.roundings * epsilon * (std::abs(b) + scale) / 2 + c.absolute;
    const bool same =
        std::isfinite(b) ? std::abs(a - b) <= bound : a == b || (std::isnan(a) && std::isnan(b));
    ASSERT_TRUE(same) << c.name << ", " << name << ", element " << i << ": " << a << ", the peer's "
                      << b << ", allowed " << bound;
  }
}

std::vector<std::string> areas_with_results() {
  std::vector<std::string> areas;
  const std::filesystem::path folder = LOCKSTEP_SOURCE_DIR "/tests/conformance/golden";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    areas.push_back(entry.path().stem().string());
  }
  std::ranges::sort(areas);
  return areas;
}

class EveryArea : public testing::TestWithParam<std::string> {};

TEST_P(EveryArea, MatchesTheResultsOfThePeers) {
  const std::string area = GetParam();
  const std::vector<Case> cases =
      read_cases(LOCKSTEP_SOURCE_DIR "/tests/conformance/golden/" + area + ".safetensors");
  ASSERT_FALSE(cases.empty());
  for (const Case& c : cases) {
    if (c.raises) {
      EXPECT_THROW(run_case(area, c), std::exception) << c.name;
      continue;
    }
    ASSERT_FALSE(c.expected.empty()) << c.name;
    const Tensors got = run_case(area, c);
    for (const auto& [name, want] : c.expected) {
      ASSERT_TRUE(got.contains(name)) << c.name << " has no " << name;
      expect_near(c, name, got.at(name), want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, EveryArea, testing::ValuesIn(areas_with_results()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace conformance
