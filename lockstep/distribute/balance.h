// Balance: sizes pieces by the measured speed of each replica, so that all finish together. A
// replica that slows down for a while gets less, and more again afterwards. Pieces of other sizes
// have to be planned: they are used when the time lost without them reaches the cost of planning.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "lockstep/distribute/pieces.h"

namespace lockstep {

enum class Balance { Even, Auto };

struct BalancerOptions {
  int window = 8;               // steps whose median decides
  double worth = 0.03;          // changes that save less than this fraction of a step are not made
  double near = 0.01;           // a planned split is used if another one saves less than this
  std::int64_t fractions = 64;  // a piece changes by this fraction of an even one
  std::size_t known = 8;        // splits, the latest, that are assumed to be planned still
};

class Balancer {
 public:
  explicit Balancer(int replicas, BalancerOptions options = {});

  // How a batch of this many samples is split now.
  std::vector<Piece> split(std::int64_t samples) const;
  // Reports how long each replica was busy with its piece, without waiting and communication.
  // Replicas without samples say nothing about their speed.
  void observe(std::span<const Piece> pieces, std::span<const double> seconds);
  // Reports how long it took to plan a step for pieces of these sizes.
  void planned(std::span<const Piece> pieces, double seconds);
  // Samples per second, as estimated; all equal before anything was measured.
  std::span<const double> speeds() const { return speeds_; }

 private:
  using Sizes = std::vector<std::int64_t>;
  static Sizes sizes_of(std::span<const Piece> pieces);
  std::vector<Piece> split_by(std::span<const double> speeds, std::int64_t samples) const;
  const Sizes* best_known(std::int64_t samples, std::span<const double> speeds) const;
  void decide();

  BalancerOptions options_;
  std::vector<double> speeds_;
  Sizes chosen_;                              // of the current split; empty: even
  Sizes sizes_;                               // of the pieces in this window
  std::vector<std::vector<double>> seconds_;  // by replica, of this window
  std::deque<Sizes> known_;                   // what was planned last
  double cost_ = 0;                           // seconds to plan pieces of other sizes
  double lost_ = 0;                           // seconds lost in windows that asked for others
};

}  // namespace lockstep
