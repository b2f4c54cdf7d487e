#include "lockstep/comm/link_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/link_end.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kStop = 0;
constexpr std::uint64_t kGo = 1;
constexpr int kWarmUp = 2;  // rounds
constexpr int kFewestRounds = 3;
constexpr int kMostRounds = 1000;
constexpr int kKinds = 4;  // of rounds

// What the lower worker of a pair measures.
struct PairSpeed {
  double latency_s = 0;
  double there = 0;  // bytes per second, to the higher worker
  double back = 0;
  double both = 0;
};

// What both ends do in a round: the lower worker, the higher one, and whether that one says when it
// is done.
struct ProbeRound {
  void (LinkEnd::*lower)() = nullptr;  // null: nothing but the words
  void (LinkEnd::*higher)() = nullptr;
  bool answered = true;
};

constexpr ProbeRound kPingPong = {};
constexpr ProbeRound kThere = {&LinkEnd::send_block, &LinkEnd::receive_block};
constexpr ProbeRound kBack = {&LinkEnd::receive_block, &LinkEnd::send_block, false};
constexpr ProbeRound kBoth = {&LinkEnd::swap_blocks, &LinkEnd::swap_blocks};

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The lower worker's part: the median time of a round.
double lead(LinkEnd& end, const ProbeRound& round, std::int64_t time_ns) {
  std::vector<double> seconds;
  const std::int64_t begin = now_ns();
  for (int i = 0; i < kWarmUp + kFewestRounds || (i < kMostRounds && now_ns() - begin < time_ns);
       ++i) {
    if (round.answered) end.expect_word();
    const std::int64_t start = now_ns();
    end.send_word(kGo);
    if (round.lower != nullptr) (end.*round.lower)();
    if (round.answered) end.receive_word();
    if (i >= kWarmUp) seconds.push_back(static_cast<double>(now_ns() - start) * 1e-9);
  }
  end.send_word(kStop);
  return middle_of(std::move(seconds));
}

// The higher worker's part.
void follow(LinkEnd& end, const ProbeRound& round) {
  while (end.receive_word() == kGo) {
    end.expect_word();
    if (round.higher != nullptr) (end.*round.higher)();
    if (round.answered) end.send_word(kGo);
  }
}

PairSpeed measure(LinkEnd& end, const LinkProbeOptions& options) {
  const std::int64_t time_ns = std::chrono::nanoseconds(options.time_per_pair).count() / kKinds;
  const auto bytes = static_cast<double>(options.block_bytes);
  const double round_trip = lead(end, kPingPong, time_ns);
  const auto rate = [&](const ProbeRound& round, double words_s, double blocks) {
    const double seconds = lead(end, round, time_ns);
    return blocks * bytes / std::max(seconds - words_s, seconds / 2);
  };
  return {.latency_s = round_trip / 2,
          .there = rate(kThere, round_trip, 1),
          .back = rate(kBack, round_trip / 2, 1),
          .both = rate(kBoth, round_trip, 2)};
}

class Prober {
 public:
  Prober(WorkerLinks& links, const LinkProbeOptions& options)
      : links_(links),
        options_(options),
        control_(links.make_group({.names = worker_names(),
                                   .ranks_of_worker = ranks_of(-1, -1),
                                   .timeout = options.timeout})),
        wire_(links.make_wire(options.timeout)) {}

  std::vector<MeasuredLink> run() {
    const int workers = links_.workers();
    const int pairs = workers * (workers - 1) / 2;
    int done = 0;
    std::vector<MeasuredLink> speeds;
    for (int lower = 0; lower < workers; ++lower) {
      for (int higher = lower + 1; higher < workers; ++higher) {
        const PairSpeed speed = probe(lower, higher);
        speeds.push_back({lower, higher, speed.latency_s, speed.there, speed.both});
        speeds.push_back({higher, lower, speed.latency_s, speed.back, speed.both});
        if (options_.on_pair) options_.on_pair(++done, pairs);
      }
    }
    std::ranges::sort(speeds, {},
                      [](const MeasuredLink& one) { return std::tuple(one.from, one.to); });
    return speeds;
  }

 private:
  std::vector<std::string> worker_names() const {
    std::vector<std::string> names;
    for (int w = 0; w < links_.workers(); ++w) names.push_back(fmt::format("worker {}", w));
    return names;
  }
  // One rank for each of two workers, or, where they are none, for all.
  std::vector<int> ranks_of(int lower, int higher) const {
    std::vector<int> ranks;
    for (int w = 0; w < links_.workers(); ++w) {
      ranks.push_back(lower < 0 || w == lower || w == higher ? 1 : 0);
    }
    return ranks;
  }

  // Collective over all workers; what the lower one has measured.
  PairSpeed probe(int lower, int higher) {
    // A byte that says whether it failed, then the result, or the kind of the error and its text.
    std::string mine = "+";
    try {
      const PairSpeed speed = take_part(lower, higher);
      mine.append(reinterpret_cast<const char*>(&speed), sizeof(speed));
    } catch (...) {
      const Failure failure = failure_of(links_.worker(), std::current_exception());
      mine = fmt::format("-{}{}", static_cast<char>(failure.kind), failure.message);
    }
    const std::vector<std::string> all = lockstep::exchange(control_->rank(links_.worker()), mine);
    for (std::size_t w = 0; w < all.size(); ++w) {
      if (all[w].front() == '+') continue;
      throw_failure({.rank = static_cast<int>(w),
                     .kind = static_cast<FailureKind>(all[w][1]),
                     .message = fmt::format("[worker {}] {}", w, all[w].substr(2))});
    }
    PairSpeed speed;
    std::memcpy(&speed, all[static_cast<std::size_t>(lower)].data() + 1, sizeof(speed));
    return speed;
  }

  PairSpeed take_part(int lower, int higher) {
    const int worker = links_.worker();
    std::unique_ptr<Group> pair;
    if (wire_ == nullptr) {
      pair = links_.make_group(
          {.names = {fmt::format("worker {}", lower), fmt::format("worker {}", higher)},
           .ranks_of_worker = ranks_of(lower, higher),
           .timeout = options_.timeout});
    }
    if (worker != lower && worker != higher) return {};
    const std::unique_ptr<LinkEnd> end =
        pair != nullptr ? make_group_end(pair->rank(worker == lower ? 0 : 1), options_.block_bytes)
                        : make_wire_end(*wire_, worker == lower ? higher : lower,
                                        options_.block_bytes, options_.timeout);
    if (worker == lower) return measure(*end, options_);
    for (const ProbeRound& round : {kPingPong, kThere, kBack, kBoth}) follow(*end, round);
    return {};
  }

  WorkerLinks& links_;
  const LinkProbeOptions& options_;
  std::unique_ptr<Group> control_;
  std::unique_ptr<Wire> wire_;  // none where the workers share memory
};

}  // namespace

std::vector<MeasuredLink> probe_links(WorkerLinks& links, const LinkProbeOptions& options) {
  require(options.block_bytes > 0 && options.block_bytes % 16 == 0,
          "[link probe] a large message of {} bytes: give a multiple of 16", options.block_bytes);
  return Prober(links, options).run();
}

}  // namespace lockstep
