// Numbers among the flags: what is not one, or beyond what makes sense, gets one short sentence.
#pragma once

#include <cstdint>

#include "lockstep/cli/flags.h"

namespace lockstep::cli {

// The most that flags take; products of them stay within 64 bits.
inline constexpr std::int64_t kMostEpochs = 1'000'000;
inline constexpr std::int64_t kMostStepsOfAnEpoch = 1'000'000'000;
inline constexpr std::int64_t kMostSamples = 1'000'000'000;  // of a batch
inline constexpr int kMostReplicas = 256;
inline constexpr int kMostCores = 1'000'000;
inline constexpr double kMostRate = 1e6;

// A whole number from `low` to `high`, in decimal digits.
Check whole_number(std::int64_t low, std::int64_t high);
// Any of 64 bits.
Check seed_number();
// A finite number from `low` to `high`.
Check number(double low, double high);

}  // namespace lockstep::cli
