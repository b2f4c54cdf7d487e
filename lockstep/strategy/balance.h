// Balance: pieces that follow the measured speed of each replica, so that all finish together. A
// replica that slows down for a while gets less, and more again afterwards. Pieces of other sizes
// have to be planned: they are taken when what was lost without them comes to what that costs.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "lockstep/strategy/share.h"

namespace lockstep {

enum class Balance { Even, Auto };

struct BalancerOptions {
  int window = 8;               // steps whose median decides
  double worth = 0.03;          // changes that save less than this part of a step are not made
  double near = 0.01;           // a split that is planned is taken where another saves less
  std::int64_t fractions = 64;  // a piece changes by this part of an even one
  std::size_t known = 8;        // splits, the last ones, that are taken to be planned still
};

class Balancer {
 public:
  explicit Balancer(int replicas, BalancerOptions options = {});

  // How a batch of so many samples is split now.
  std::vector<Piece> split(std::int64_t samples) const;
  // Tells how long each replica was at work on its piece, without waiting and communication.
  // Replicas without samples tell nothing of their speed.
  void observe(std::span<const Piece> pieces, std::span<const double> seconds);
  // Tells how long it took to plan a step for pieces of these sizes.
  void planned(std::span<const Piece> pieces, double seconds);
  // Samples a second, as estimated; all the same before anything was measured.
  std::span<const double> speeds() const { return speeds_; }

 private:
  using Sizes = std::vector<std::int64_t>;
  static Sizes sizes_of(std::span<const Piece> pieces);
  std::vector<Piece> split_by(std::span<const double> speeds, std::int64_t samples) const;
  const Sizes* best_known(std::int64_t samples, std::span<const double> speeds) const;
  void decide();

  BalancerOptions options_;
  std::vector<double> speeds_;
  Sizes chosen_;                              // of the split that is followed; empty: even
  Sizes sizes_;                               // of the pieces in this window
  std::vector<std::vector<double>> seconds_;  // by replica, of this window
  std::deque<Sizes> known_;                   // what was planned last
  double cost_ = 0;                           // seconds to plan pieces of other sizes
  double lost_ = 0;                           // seconds in windows that asked for others
};

}  // namespace lockstep
