// Every update rule against its definition, and what holds for all of them.
#include <numeric>

#include "kernels/cases_update.h"
#include "kernels/evaluate.h"

namespace lockstep {
namespace {

using Doubles = std::vector<double>;

double norm_of(const Doubles& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

double real(const RuleCase& rule, const char* name, double otherwise = 0) {
  return rule.attrs.has(name) ? rule.attrs.real(name) : otherwise;
}

bool flag(const RuleCase& rule, const char* name) {
  return rule.attrs.has(name) && rule.attrs.flag(name);
}

// One parameter, its gradient and slots, in double.
struct Parameter {
  Doubles p, g;
  std::vector<Doubles> slots;
};

// The rules of graph/ops/update.h, one element at a time.
void update_by_definition(const RuleCase& rule, Parameter& x, double r, double scale, double t) {
  Doubles g = x.g;
  for (double& v : g) v *= scale;
  if (rule.attrs.has("clip_norm")) {
    const double factor = std::min(1.0, real(rule, "clip_norm") / norm_of(g));
    for (double& v : g) v *= factor;
  }
  if (rule.attrs.has("clip_value")) {
    for (double& v : g) v = std::clamp(v, -real(rule, "clip_value"), real(rule, "clip_value"));
  }
  const double epsilon = real(rule, "epsilon");
  const double momentum = real(rule, "momentum");
  const double decay = real(rule, "weight_decay");
  const double b1 = real(rule, "beta_1");
  const double b2 = real(rule, "beta_2");
  const double p_norm = norm_of(x.p);
  const double g_norm = norm_of(g);
  const bool inside = rule.rule == "lars" || rule.rule == "lamb";
  Doubles direction(x.p.size());
  for (std::size_t i = 0; i < x.p.size(); ++i) {
    double& p = x.p[i];
    if (!inside) p -= r * decay * p;
    if (rule.rule == "sgd") {
      if (momentum > 0) {
        double& v = x.slots[0][i];
        v = momentum * v - r * g[i];
        p += flag(rule, "nesterov") ? momentum * v - r * g[i] : v;
      } else {
        p -= r * g[i];
      }
    } else if (rule.rule == "adam" || rule.rule == "adamw") {
      double& m = x.slots[0][i];
      double& v = x.slots[1][i];
      m += (g[i] - m) * (1 - b1);
      v += (g[i] * g[i] - v) * (1 - b2);
      p -=
          r * std::sqrt(1 - std::pow(b2, t)) / (1 - std::pow(b1, t)) * m / (std::sqrt(v) + epsilon);
    } else if (rule.rule == "rmsprop") {
      const double rho = real(rule, "rho");
      double& v = x.slots[0][i];
      v = rho * v + (1 - rho) * g[i] * g[i];
      double d = v;
      if (flag(rule, "centered")) {
        double& mean = x.slots.back()[i];
        mean = rho * mean + (1 - rho) * g[i];
        d -= mean * mean;
      }
      double step = r * g[i] / std::sqrt(d + epsilon);
      if (momentum > 0) {
        double& m = x.slots[1][i];
        m = momentum * m + step;
        step = m;
      }
      p -= step;
    } else if (rule.rule == "adagrad") {
      double& a = x.slots[0][i];
      a += g[i] * g[i];
      p -= r * g[i] / std::sqrt(a + epsilon);
    } else if (rule.rule == kAccumulateRule) {
      p = r == 0 ? g[i] : p + g[i];
    } else if (rule.rule == "lars") {
      const double local = p_norm == 0 || g_norm == 0
                               ? 1.0
                               : real(rule, "trust") * p_norm / (g_norm + decay * p_norm + epsilon);
      double& v = x.slots[0][i];
      v = momentum * v + local * r * (g[i] + decay * p);
      p -= v;
    } else {
      double& m = x.slots[0][i];
      double& v = x.slots[1][i];
      m += (g[i] - m) * (1 - b1);
      v += (g[i] * g[i] - v) * (1 - b2);
      direction[i] =
          m / (1 - std::pow(b1, t)) / (std::sqrt(v / (1 - std::pow(b2, t))) + epsilon) + decay * p;
    }
  }
  if (rule.rule == "lamb") {
    const double u_norm = norm_of(direction);
    const double trust = p_norm == 0 || u_norm == 0 ? 1.0 : p_norm / u_norm;
    for (std::size_t i = 0; i < x.p.size(); ++i) x.p[i] -= r * trust * direction[i];
  }
}

enum class Memory { Adjacent, Separate };

// An update of parameters of these sizes, with its kernel bound to the test's memory. Every list
// ends in a guard element that must keep its value.
template <class T>
class Bench {
 public:
  Bench(const RuleCase& rule, std::vector<std::int64_t> sizes, Memory memory)
      : sizes_(std::move(sizes)) {
    constexpr DType kDType = dtype_of<T>();
    UpdateInputs inputs{.rate = graph_.input("rate", {DType::F32, {}}),
                        .scale = graph_.input("scale", {DType::F32, {}}),
                        .step = graph_.input("step", {DType::I64, {}}),
                        .parameters = {},
                        .gradients = {},
                        .slots = {}};
    inputs.slots.resize(rule.slots);
    const auto add_list = [&](const std::string& name, std::vector<Value>& list) {
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        list.push_back(graph_.variable(random_variable(fmt::format("{}_{}", name, i), {sizes_[i]},
                                                       name.starts_with("slot"), kDType)));
      }
    };
    add_list("parameter", inputs.parameters);
    add_list("gradient", inputs.gradients);
    for (std::size_t s = 0; s < rule.slots; ++s)
      add_list(fmt::format("slot_{}", s), inputs.slots[s]);
    update(inputs, rule.rule, rule.attrs);
    const KernelCall call{graph_, graph_.nodes().back()};
    kernel_ = reference_kernels().find(call).make(call);

    const std::int64_t gap = memory == Memory::Separate ? 3 : 0;
    const std::int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
    const auto room =
        static_cast<std::size_t>(total + gap * static_cast<std::int64_t>(sizes_.size()) + 1);
    Binding binding;
    binding.inputs = {bytes(&rate_), bytes(&scale_), bytes(&step_)};
    lists_.resize(2 + rule.slots, std::vector<T>(room, T(99)));
    for (std::vector<T>& list : lists_) {
      std::int64_t at = 0;
      for (const std::int64_t size : sizes_) {
        binding.inputs.push_back(bytes(list.data() + at));
        at += size + gap;
      }
    }
    gap_ = gap;
    binding_ = binding;
    kernel_->bind(binding);
  }

  // A parameter's elements in one of the lists: 0 is parameters, 1 is gradients, 2… are slots.
  std::span<T> at(std::size_t list, std::size_t parameter) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parameter; ++i) begin += sizes_[i] + gap_;
    return std::span<T>(lists_[list])
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(sizes_[parameter]));
  }

  void fill_all(std::uint64_t seed) {
    for (std::size_t list = 0; list < lists_.size(); ++list) {
      for (std::size_t i = 0; i < sizes_.size(); ++i) {
        RandomSequence random(seed, 100 * list + i);
        for (T& v : at(list, i)) {
          v = static_cast<T>(list < 2 ? random.normal() : 0.1 + 0.9 * random.uniform());
        }
      }
    }
  }

  void run(float rate, float scale, std::int64_t iterations) {
    rate_ = rate;
    scale_ = scale;
    step_ = iterations + 1;
    kernel_->run(*stream_);
  }

  std::size_t parameters() const { return sizes_.size(); }
  std::size_t lists() const { return lists_.size(); }
  T guard(std::size_t list) const { return lists_[list].back(); }

 private:
  template <class U>
  static const std::byte* bytes(const U* data) {
    return reinterpret_cast<const std::byte*>(data);
  }

  Graph graph_;
  std::vector<std::int64_t> sizes_;
  std::int64_t gap_ = 0;
  std::vector<std::vector<T>> lists_;
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Stream> stream_ = host().make_stream();
  Binding binding_;
  float rate_ = 0;
  float scale_ = 1;
  std::int64_t step_ = 1;
};

// Sizes that leave a remainder after whole vectors, and one that is split among threads.
const std::vector<std::int64_t> kSizes{7, 0, 40001, 33, 1};
const std::vector<std::int64_t> kSmallSizes{7, 0, 321, 33, 1};

class UpdateRules : public testing::TestWithParam<RuleCase> {};

// The largest difference, relative to 1 + |expected|.
template <class T>
double worst(std::span<const T> have, const Doubles& want) {
  double result = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(have[i]) - want[i]);
    const double relative = difference / (1 + std::abs(want[i]));
    if (!(relative <= result)) result = relative;
  }
  return result;
}

template <class T>
void expect_definition(const RuleCase& rule, const std::vector<std::int64_t>& sizes, Memory memory,
                       double tolerance) {
  Bench<T> bench(rule, sizes, memory);
  bench.fill_all(5);
  std::vector<Parameter> expected(sizes.size());
  const auto doubles = [&](std::size_t list, std::size_t i) {
    const auto values = bench.at(list, i);
    return Doubles(values.begin(), values.end());
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    expected[i].p = doubles(0, i);
    for (std::size_t s = 0; s < rule.slots; ++s) expected[i].slots.push_back(doubles(2 + s, i));
  }
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      RandomSequence random(9, static_cast<std::uint64_t>(step) * 10 + i);
      for (T& v : bench.at(1, i)) v = static_cast<T>(4 * random.uniform() - 2);
      expected[i].g = doubles(1, i);
      update_by_definition(rule, expected[i], 0.0625, 0.75, step + 1);
    }
    bench.run(0.0625f, 0.75f, step);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t list = 0; list < bench.lists(); ++list) {
      if (list == 1) continue;
      const Doubles& want = list == 0 ? expected[i].p : expected[i].slots[list - 2];
      EXPECT_LE(worst<T>(bench.at(list, i), want), tolerance)
          << "list " << list << ", parameter " << i;
    }
  }
  for (std::size_t list = 0; list < bench.lists(); ++list) EXPECT_EQ(bench.guard(list), T(99));
}

TEST_P(UpdateRules, FollowTheirDefinition) {
  expect_definition<double>(GetParam(), kSmallSizes, Memory::Adjacent, 1e-12);
  expect_definition<double>(GetParam(), kSmallSizes, Memory::Separate, 1e-12);
  expect_definition<float>(GetParam(), kSizes, Memory::Adjacent, 1e-5);
  expect_definition<float>(GetParam(), kSmallSizes, Memory::Separate, 1e-5);
}

TEST_P(UpdateRules, AdjacentParametersGetTheSameBitsAsSeparateOnes) {
  Bench<float> adjacent(GetParam(), kSizes, Memory::Adjacent);
  Bench<float> separate(GetParam(), kSizes, Memory::Separate);
  for (Bench<float>* bench : {&adjacent, &separate}) {
    bench->fill_all(3);
    bench->run(0.01f, 0.5f, 4);
  }
  for (std::size_t list = 0; list < adjacent.lists(); ++list) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const auto a = adjacent.at(list, i);
      const auto b = separate.at(list, i);
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin())) << list << " " << i;
    }
  }
}

TEST_P(UpdateRules, AScaleOfZeroChangesNothing) {
  Bench<float> bench(GetParam(), kSizes, Memory::Adjacent);
  bench.fill_all(3);
  bench.at(1, 2)[5] = std::numeric_limits<float>::quiet_NaN();
  Bench<float> before(GetParam(), kSizes, Memory::Adjacent);
  before.fill_all(3);
  bench.run(0.01f, 0.0f, 4);
  for (std::size_t list = 0; list < bench.lists(); ++list) {
    if (list == 1) continue;
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const auto a = bench.at(list, i);
      const auto b = before.at(list, i);
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin())) << list << " " << i;
    }
  }
}

TEST_P(UpdateRules, AZeroParameterWithAZeroGradientStaysFinite) {
  Bench<float> bench(GetParam(), {4, 5}, Memory::Adjacent);
  bench.fill_all(3);
  for (std::size_t list = 0; list < 2; ++list) std::ranges::fill(bench.at(list, 0), 0.0f);
  bench.run(0.01f, 1.0f, 0);
  for (const float v : bench.at(0, 0)) EXPECT_TRUE(std::isfinite(v));
}

TEST_P(UpdateRules, WithoutEpsilonZerosStayZero) {
  RuleCase rule = GetParam();
  rule.attrs.set("epsilon", 0.0);
  Bench<float> bench(rule, {4, 5}, Memory::Adjacent);
  bench.fill_all(3);
  for (std::size_t list = 0; list < 2 + rule.slots; ++list) {
    std::ranges::fill(bench.at(list, 0), 0.0f);
  }
  for (std::int64_t step = 0; step < 3; ++step) bench.run(0.01f, 1.0f, step);
  for (std::size_t list = 0; list < 2 + rule.slots; ++list) {
    for (const float v : bench.at(list, 0)) EXPECT_EQ(v, 0.0f) << list;
  }
}

// Whatever the accumulators held: the sums of a step that overflowed, for example.
TEST(AccumulateRule, BeginsAnewWithARateOfZero) {
  Bench<float> bench({"accumulate", kAccumulateRule, {}, 0}, kSizes, Memory::Adjacent);
  bench.fill_all(3);
  bench.at(0, 2)[5] = std::numeric_limits<float>::quiet_NaN();
  bench.run(0.0f, 1.0f, 0);
  bench.run(1.0f, 1.0f, 0);
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    for (std::size_t e = 0; e < bench.at(0, i).size(); ++e) {
      ASSERT_EQ(bench.at(0, i)[e], 2 * bench.at(1, i)[e]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, UpdateRules, testing::ValuesIn(rule_cases()),
                         [](const testing::TestParamInfo<RuleCase>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace lockstep
