// Dropout: the mask is drawn from Philox where it is applied, and never stored. Sixteen blocks of
// four words are drawn side by side, so that the rounds run in vector registers.
#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/random.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::size_t kLanes = 16;           // blocks drawn together
constexpr std::int64_t kWords = 4 * kLanes;  // numbers in them
using Lanes = std::array<std::uint32_t, kLanes>;

// Philox's multipliers, read from memory: the compiler takes a widening product with a
// constant apart into shifts and sums, which is slower than the instruction.
struct Multipliers {
  std::uint32_t a = 0xD2511F53;
  std::uint32_t b = 0xCD9E8D57;
};

// The words of the blocks first, first + 1, …, in the order of base/random.h's philox.
LOCKSTEP_EVERY_ISA void draw_blocks(PhiloxKey key, const PhiloxBlock& first, Multipliers by,
                                    std::uint32_t* words) {
  Lanes c0, c1, c2, c3;
  for (std::size_t i = 0; i < kLanes; ++i) {
    c0[i] = first[0] + static_cast<std::uint32_t>(i);
    c1[i] = first[1];
    c2[i] = first[2];
    c3[i] = first[3];
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t a = std::uint64_t{by.a} * c0[i];
      const std::uint64_t b = std::uint64_t{by.b} * c2[i];
      c0[i] = static_cast<std::uint32_t>(b >> 32) ^ c1[i] ^ key.low;
      c1[i] = static_cast<std::uint32_t>(b);
      c2[i] = static_cast<std::uint32_t>(a >> 32) ^ c3[i] ^ key.high;
      c3[i] = static_cast<std::uint32_t>(a);
    }
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

struct Mask {
  std::int64_t samples = 0;
  std::int64_t size = 0;  // elements of a sample
  PhiloxKey key;
  Multipliers multipliers;
  // to_unit_float(word) < rate, said of the word's upper 24 bits.
  std::uint32_t threshold = 0;
  double scale = 1;
};

Mask mask_of(const KernelCall& call) {
  const Shape& shape = call.in_shape(0);
  const double rate = call.attrs().real("rate");
  Mask mask;
  mask.samples = shape[0];
  mask.size = shape[0] == 0 ? 0 : shape.elements() / shape[0];
  mask.key = make_key(static_cast<std::uint64_t>(call.attrs().integer("seed")),
                      static_cast<std::uint64_t>(call.attrs().integer("key")));
  mask.threshold = static_cast<std::uint32_t>(std::ceil(rate * 16777216.0));
  mask.scale = 1.0 / (1.0 - rate);
  return mask;
}

// Elements [begin, end) of one sample; begin is a multiple of kWords.
template <class T>
void drop(const Mask& mask, PhiloxBlock counter, const T* x, T* y, std::int64_t begin,
          std::int64_t end) {
  const T scale = static_cast<T>(mask.scale);
  std::array<std::uint32_t, static_cast<std::size_t>(kWords)> words;
  for (std::int64_t at = begin; at < end; at += kWords) {
    counter[0] = static_cast<std::uint32_t>(at / 4);
    draw_blocks(mask.key, counter, mask.multipliers, words.data());
    const std::int64_t count = std::min(kWords, end - at);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool dropped = (words[static_cast<std::size_t>(i)] >> 8) < mask.threshold;
      y[at + i] = dropped ? T(0) : x[at + i] * scale;
    }
  }
}

template <class T>
std::unique_ptr<Kernel> make_dropout_of(const KernelCall& call) {
  return make_kernel([mask = mask_of(call)](const Binding& binding) {
    const auto step = static_cast<std::uint64_t>(binding.in<std::int64_t>(1)[0]);
    const std::int64_t first = binding.in<std::int64_t>(1)[1];
    // Pieces of kWords elements, so that few large samples are shared out as well as many small.
    const std::int64_t pieces = (mask.size + kWords - 1) / kWords;
    parallel_for(mask.samples * pieces, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t sample = piece / pieces;
        const std::int64_t at = piece % pieces * kWords;
        const PhiloxBlock counter{0, static_cast<std::uint32_t>(first + sample),
                                  static_cast<std::uint32_t>(step),
                                  static_cast<std::uint32_t>(step >> 32)};
        drop(mask, counter, binding.in<T>(0) + sample * mask.size,
             binding.out<T>(0) + sample * mask.size, at, std::min(at + kWords, mask.size));
      }
    });
  });
}

std::unique_ptr<Kernel> make_dropout(const KernelCall& call) {
  return make_floating(call, [&](auto zero) { return make_dropout_of<decltype(zero)>(call); });
}

}  // namespace

void add_reference_random(KernelLibrary& library) {
  library.add(Op::Dropout,
              {.name = "reference.dropout", .supports = supports_floating, .make = make_dropout});
}

}  // namespace lockstep
