// The reference sums that the collectives are compared with, and their own tests. 16-bit numbers
// are decoded with arithmetic, not with bits, so that they share nothing with what they check.
#include <cmath>
#include <limits>

#include "comm/ranks.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

// A format with a sign, `exponent` bits and `fraction` bits.
struct Half {
  int exponent;
  int fraction;

  int bias() const { return (1 << (exponent - 1)) - 1; }
  int top() const { return (1 << exponent) - 1; }

  double value(std::uint16_t bits) const {
    const int field = bits >> fraction & top();
    const int rest = bits & ((1 << fraction) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (field == top()) {
      return rest != 0 ? std::numeric_limits<double>::quiet_NaN()
                       : sign * std::numeric_limits<double>::infinity();
    }
    if (field == 0) return sign * std::ldexp(rest, 1 - bias() - fraction);
    return sign * std::ldexp((1 << fraction) + rest, field - bias() - fraction);
  }

  std::uint16_t nearest(float number) const {
    const int sign = std::signbit(number) ? 0x8000 : 0;
    if (std::isnan(number)) return static_cast<std::uint16_t>(sign | top() << fraction | 1);
    const double size = std::fabs(static_cast<double>(number));
    if (std::isinf(size)) return static_cast<std::uint16_t>(sign | top() << fraction);
    const int field = size == 0 ? 0 : std::max(std::ilogb(size) + bias(), 0);
    const int unit = std::max(field, 1) - bias() - fraction;
    // In units of the last place; a carry out of the fraction moves into the exponent
    // automatically.
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, -unit)));
    const int bits = units + (std::max(field, 1) - 1) * (1 << fraction);
    return static_cast<std::uint16_t>(sign | std::min(bits, top() << fraction));
  }
};

constexpr Half kF16{5, 10};
constexpr Half kBf16{8, 7};

template <class T>
using Numbers = std::vector<T>;

template <class T>
Numbers<T> add_in_order(const std::vector<Numbers<T>>& all) {
  Numbers<T> sums = all[0];
  for (std::size_t next = 1; next < all.size(); ++next) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + all[next][i];
  }
  return sums;
}

// Up to 16 in order; more as sums of 16 each.
template <class T>
Numbers<T> add_as_tree(const std::vector<Numbers<T>>& all) {
  if (all.size() <= 16) return add_in_order(all);
  std::vector<Numbers<T>> sums;
  for (std::size_t begin = 0; begin < all.size(); begin += 16) {
    const std::size_t end = std::min(begin + 16, all.size());
    sums.push_back(
        add_in_order(std::vector<Numbers<T>>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                             all.begin() + static_cast<std::ptrdiff_t>(end))));
  }
  return add_as_tree(sums);
}

// `read` makes numbers of a rank's bytes, `round` numbers that fit into the type again.
template <class T, class Read, class Round>
Numbers<T> add_workers(const std::vector<Bytes>& ranks, const std::vector<int>& ranks_of_worker,
                       const Read& read, const Round& round) {
  std::vector<Numbers<T>> workers;
  std::size_t next = 0;
  for (const int count : ranks_of_worker) {
    if (count == 0) continue;
    std::vector<Numbers<T>> numbers;
    for (int i = 0; i < count; ++i) numbers.push_back(read(ranks[next++]));
    workers.push_back(add_in_order(numbers));
    for (T& number : workers.back()) number = round(number);
  }
  return add_as_tree(workers);
}

template <class T>
Bytes sum_plain(const std::vector<Bytes>& ranks, const std::vector<int>& ranks_of_worker) {
  const auto read = [](const Bytes& bytes) {
    Numbers<T> numbers(bytes.size() / sizeof(T));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = load<T>(bytes, i);
    return numbers;
  };
  const auto sums = add_workers<T>(ranks, ranks_of_worker, read, [](T number) { return number; });
  Bytes result(ranks[0].size());
  for (std::size_t i = 0; i < sums.size(); ++i) store<T>(result, i, sums[i]);
  return result;
}

Bytes sum_half(const Half& half, const std::vector<Bytes>& ranks,
               const std::vector<int>& ranks_of_worker) {
  if (ranks.size() == 1) return ranks[0];
  const auto value = [&](std::uint16_t bits) { return static_cast<float>(half.value(bits)); };
  const auto read = [&](const Bytes& bytes) {
    Numbers<float> numbers(bytes.size() / 2);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = value(load<std::uint16_t>(bytes, i));
    }
    return numbers;
  };
  const auto sums = add_workers<float>(ranks, ranks_of_worker, read,
                                       [&](float number) { return value(half.nearest(number)); });
  Bytes result(ranks[0].size());
  for (std::size_t i = 0; i < sums.size(); ++i) store(result, i, half.nearest(sums[i]));
  return result;
}

}  // namespace

Bytes random_elements(DType dtype, std::size_t count, std::uint64_t seed, std::uint64_t stream) {
  RandomSequence random(seed, stream);
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const float number = 2 * random.uniform() - 1;
    switch (dtype) {
      case DType::F32:
        store(bytes, i, number);
        break;
      case DType::F64:
        store(bytes, i, static_cast<double>(number) / 3);
        break;
      case DType::I32:
        store(bytes, i, random.next());
        break;
      case DType::I64:
        store(bytes, i, std::uint64_t{random.next()} << 32 | random.next());
        break;
      case DType::F16:
        store(bytes, i, kF16.nearest(number));
        break;
      case DType::BF16:
        store(bytes, i, kBf16.nearest(number));
        break;
      case DType::U8:
      case DType::Bool:
        store(bytes, i, static_cast<std::uint8_t>(random.next() & 1u));
        break;
    }
  }
  return bytes;
}

Bytes sum_over_ranks(DType dtype, const std::vector<Bytes>& ranks,
                     const std::vector<int>& ranks_of_worker) {
  const std::vector<int> workers =
      ranks_of_worker.empty() ? std::vector<int>{static_cast<int>(ranks.size())} : ranks_of_worker;
  switch (dtype) {
    case DType::F32:
      return sum_plain<float>(ranks, workers);
    case DType::F64:
      return sum_plain<double>(ranks, workers);
    case DType::I32:
      return sum_plain<std::uint32_t>(ranks, workers);
    case DType::I64:
      return sum_plain<std::uint64_t>(ranks, workers);
    case DType::F16:
      return sum_half(kF16, ranks, workers);
    case DType::BF16:
      return sum_half(kBf16, ranks, workers);
    case DType::U8:
    case DType::Bool:
      break;
  }
  return {};
}

namespace {

TEST(Reference, ItsHalfNumbersAreTheStandardOnes) {
  EXPECT_EQ(kF16.value(0x3C00), 1.0);
  EXPECT_EQ(kF16.value(0x7BFF), 65504.0);
  EXPECT_EQ(kF16.value(0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(kF16.nearest(65519.0F), 0x7BFF);
  EXPECT_EQ(kF16.nearest(65520.0F), 0x7C00);
  EXPECT_EQ(kF16.nearest(-2.0F), 0xC000);
  EXPECT_EQ(kBf16.value(0x3F80), 1.0);
  EXPECT_EQ(kBf16.nearest(1.00390625F), 0x3F80);  // halfway: to even
  EXPECT_EQ(kBf16.nearest(1.01171875F), 0x3F82);
}

// Each of the 65536 numbers, added to zero, comes back; and each added to another one, which covers
// every way of rounding, gives what the reference says.
TEST(HalfSums, EveryNumberIsReadAndRoundedAsTheFormatSays) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const Half& half = dtype == DType::F16 ? kF16 : kBf16;
    for (const std::uint16_t other : {0x0000, 0x3C01, 0x0001, 0x83FF, 0x7BFF, 0xC2AB, 0x7C00}) {
      constexpr std::size_t kAll = 65536;
      std::vector<Bytes> data(2, Bytes(kAll * 2));
      for (std::size_t i = 0; i < kAll; ++i) {
        store(data[0], i, static_cast<std::uint16_t>(i));
        store(data[1], i, other);
      }
      const Bytes expected = sum_over_ranks(dtype, data);
      LocalGroup group(group_of(2));
      expect_no_errors(run_ranks(group, [&](Communicator& comm) {
        Bytes& mine = data[static_cast<std::size_t>(comm.rank())];
        const auto sum = comm.all_reduce(mine, dtype);
        sum->start();
        sum->finish();
      }));
      EXPECT_EQ(data[0], data[1]);
      for (std::size_t i = 0; i < kAll; ++i) {
        const double want = half.value(load<std::uint16_t>(expected, i));
        const auto got = load<std::uint16_t>(data[0], i);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(half.value(got))) << i;
        } else {
          ASSERT_EQ(got, load<std::uint16_t>(expected, i)) << i << " + " << other;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
