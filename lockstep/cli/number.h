// Checks for numeric flags: what is not a number, or out of range, gets one short sentence.
#pragma once

#include <cstdint>

#include "lockstep/cli/flags.h"

namespace lockstep::cli {

// The largest values that flags accept; products of them fit into 64 bits.
inline constexpr std::int64_t kMostEpochs = 1'000'000;
inline constexpr std::int64_t kMostStepsOfAnEpoch = 1'000'000'000;
inline constexpr std::int64_t kMostSamples = 1'000'000'000;  // per batch
inline constexpr int kMostReplicas = 256;
inline constexpr int kMostCores = 1'000'000;
inline constexpr double kMostRate = 1e6;
inline constexpr double kMostSeconds = 86'400;

// A whole number from `low` to `high`, in decimal digits.
Check whole_number(std::int64_t low, std::int64_t high);
// Any unsigned number of 64 bits.
Check seed_number();
// A finite number from `low` to `high`.
Check number(double low, double high);

}  // namespace lockstep::cli
