#include "lockstep/passes/recompute_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "lockstep/passes/recompute_segments.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

// A selection is recorded whenever the peak has fallen by this fraction of the first one.
constexpr std::size_t kRecordedSteps = 64;
// An input this much smaller than what is freed is kept longer rather than computed again.
constexpr std::size_t kSmallInput = 64;

class GreedySelection {
 public:
  GreedySelection(const RecomputeAnalysis& analysis, const Uses& uses, double neighbour_weight)
      : analysis_(analysis),
        uses_(uses),
        neighbour_weight_(neighbour_weight),
        selection_(analysis.none()),
        rejected_(analysis.none()),
        region_(selection_.size()),
        region_work_(selection_.size(), 0) {
    std::iota(region_.begin(), region_.end(), NodeId{0});
  }

  std::vector<RecomputePoint> run() {
    now_ = analysis_.lifetimes(selection_);
    const std::size_t step = now_.peak_bytes / kRecordedSteps + 1;
    std::size_t recorded = now_.peak_bytes;
    std::vector<RecomputePoint> points;
    while (const std::optional<Candidate> best = best_candidate()) {
      Selection next = selection_;
      for (NodeId n : best->nodes) next[at(n)] = true;
      Lifetimes lifetimes = analysis_.lifetimes(next);
      if (lifetimes.peak_bytes > now_.peak_bytes) {
        rejected_[at(best->nodes.front())] = true;
        continue;
      }
      selection_ = std::move(next);
      now_ = std::move(lifetimes);
      for (NodeId n : best->nodes) enlarge_region(n);
      if (now_.peak_bytes + step > recorded) continue;
      recorded = now_.peak_bytes;
      rejected_ = analysis_.none();
      points.push_back(point());
    }
    if (now_.peak_bytes < recorded) points.push_back(point());
    return points;
  }

 private:
  template <class I>
  static std::size_t at(I i) {
    return static_cast<std::size_t>(i);
  }

  // A node whose results are given up, first, and what has to be computed again for it.
  struct Candidate {
    std::vector<NodeId> nodes;
    double freed = 0;  // bytes, at the peak
    double work = 0;
  };

  RecomputePoint point() const {
    return {.selection = selection_, .work = now_.work, .live_bytes = now_.peak_bytes};
  }

  std::optional<Candidate> best_candidate() const {
    std::optional<Candidate> best;
    double best_score = 0;
    for (NodeId n = 0; n < analysis_.node_count(); ++n) {
      if (selection_[at(n)] || rejected_[at(n)] || !analysis_.recomputable(n)) continue;
      const auto [bytes, needed_at] = freed_at_peak(n);
      if (bytes == 0) continue;
      Candidate candidate{.nodes = {n}, .freed = static_cast<double>(bytes), .work = 0};
      add_needed(candidate, needed_at);
      if (candidate.freed <= 0) continue;
      const double score =
          candidate.freed / (candidate.work + neighbour_weight_ * neighbours(candidate) + 1);
      if (score <= best_score) continue;
      best_score = score;
      best = std::move(candidate);
    }
    return best;
  }

  // The bytes of a node's results that are live at the peak but neither read there nor by the
  // forward pass after it, and where the backward pass first reads one.
  std::pair<std::size_t, int> freed_at_peak(NodeId n) const {
    std::size_t bytes = 0;
    int first = std::numeric_limits<int>::max();
    if (analysis_.view(n)) return {0, first};
    for (ValueId id : analysis_.graph().node(n).outputs) {
      if (!analysis_.copied(id) || now_.last_read[at(id)] < now_.peak_at) continue;
      const int late = now_.first_late_read[at(id)];
      first = std::min(first, late);
      if (late <= now_.peak_at || now_.last_early_read[at(id)] >= now_.peak_at) continue;
      bytes += analysis_.bytes(id);
    }
    return first <= now_.peak_at ? std::pair{std::size_t{0}, first} : std::pair{bytes, first};
  }

  // Adds the nodes whose results are needed to compute the first one again but are not there any
  // more; those that cannot be computed again have to be kept.
  void add_needed(Candidate& candidate, int needed_at) const {
    const double small = candidate.freed / kSmallInput;
    for (std::size_t next = 0; next < candidate.nodes.size(); ++next) {
      candidate.work += analysis_.work(candidate.nodes[next]);
      for (ValueId id : analysis_.graph().node(candidate.nodes[next]).inputs) {
        const ValueId root = analysis_.root(id);
        const NodeId n = analysis_.producer(root);
        if (analysis_.leaf(n) || now_.again[at(root)]) continue;
        if (now_.last_read[at(root)] >= needed_at) continue;
        if (std::ranges::find(candidate.nodes, n) != candidate.nodes.end()) continue;
        const auto bytes = static_cast<double>(analysis_.bytes(root));
        if (bytes > small && analysis_.recomputable(n) && analysis_.copied(root)) {
          candidate.nodes.push_back(n);
        } else {
          candidate.freed -= bytes;
        }
      }
    }
  }

  // The regions of nodes that are given up and read one another, as sets with their work.
  NodeId region(NodeId n) const {
    while (region_[at(n)] != n) n = region_[at(n)];
    return n;
  }
  template <class F>
  void for_each_neighbour(NodeId n, const F& f) const {
    const Node& node = analysis_.graph().node(n);
    for (ValueId id : node.inputs) f(analysis_.producer(analysis_.root(id)));
    for (ValueId id : node.outputs) {
      for (NodeId reader : uses_.of(id)) {
        if (reader >= 0) f(reader);
      }
    }
  }
  void enlarge_region(NodeId n) {
    region_work_[at(n)] = analysis_.work(n);
    for_each_neighbour(n, [&](NodeId other) {
      const NodeId mine = region(n);
      const NodeId theirs = region(other);
      if (!selection_[at(other)] || mine == theirs) return;
      region_[at(theirs)] = mine;
      region_work_[at(mine)] += region_work_[at(theirs)];
    });
  }
  double neighbours(const Candidate& candidate) const {
    if (neighbour_weight_ == 0) return 0;
    std::vector<NodeId> regions;
    for (NodeId n : candidate.nodes) {
      for_each_neighbour(n, [&](NodeId other) {
        if (selection_[at(other)]) regions.push_back(region(other));
      });
    }
    std::ranges::sort(regions);
    regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
    double work = 0;
    for (NodeId n : regions) work += region_work_[at(n)];
    return work;
  }

  const RecomputeAnalysis& analysis_;
  const Uses& uses_;
  double neighbour_weight_;
  Selection selection_;
  Lifetimes now_;
  Selection rejected_;
  std::vector<NodeId> region_;  // by node: another one of its region, or itself
  std::vector<double> region_work_;
};

// From a selection that needs little memory back towards none: with every step more is allowed to
// be live, and the nodes with most work for their bytes are kept where that allows it.
class Relaxation {
 public:
  Relaxation(const RecomputeAnalysis& analysis, RecomputePoint start)
      : analysis_(analysis), point_(std::move(start)) {
    for (NodeId n = 0; n < analysis.node_count(); ++n) {
      const bool counts = analysis.work(n) * kLeastWork >= point_.work;
      if (point_.selection[static_cast<std::size_t>(n)] && counts) open_.push_back(n);
    }
    std::ranges::stable_sort(open_, std::greater<>(),
                             [&](NodeId n) { return analysis.work(n) / bytes_of(n); });
  }

  std::vector<RecomputePoint> run(std::size_t most_bytes) {
    std::vector<RecomputePoint> points;
    const std::size_t step = std::max(most_bytes, point_.live_bytes) / kRelaxedSteps + 1;
    for (std::size_t limit = point_.live_bytes; limit <= most_bytes; limit += step) {
      keep_within(limit);
      points.push_back(point_);
    }
    return points;
  }

 private:
  static constexpr double kLeastWork = 400;  // nodes with less than this part of it stay selected
  static constexpr std::size_t kRelaxedSteps = 40;

  // What keeping a node's results takes.
  double bytes_of(NodeId n) const {
    double bytes = 1;
    for (ValueId id : analysis_.graph().node(n).outputs) {
      if (analysis_.copied(id)) bytes += static_cast<double>(analysis_.bytes(id));
    }
    return bytes;
  }

  void keep_within(std::size_t limit) {
    std::erase_if(open_, [&](NodeId n) {
      Selection fewer = point_.selection;
      fewer[static_cast<std::size_t>(n)] = false;
      const Lifetimes lifetimes = analysis_.lifetimes(fewer);
      if (lifetimes.peak_bytes > limit || lifetimes.work > point_.work) return false;
      point_ = {.selection = std::move(fewer),
                .work = lifetimes.work,
                .live_bytes = lifetimes.peak_bytes};
      return true;
    });
  }

  const RecomputeAnalysis& analysis_;
  RecomputePoint point_;
  std::vector<NodeId> open_;  // that may still be kept, those with most work per byte first
};

}  // namespace

std::vector<RecomputePoint> recompute_points(const RecomputeAnalysis& analysis) {
  const auto point_of = [&](Selection selection) {
    const Lifetimes lifetimes = analysis.lifetimes(selection);
    return RecomputePoint{.selection = std::move(selection),
                          .work = lifetimes.work,
                          .live_bytes = lifetimes.peak_bytes};
  };
  std::vector<RecomputePoint> all = {point_of(analysis.none())};
  const Uses uses(analysis.graph());
  for (const double weight : {0.0, 0.25, 1.0}) {
    std::ranges::move(GreedySelection(analysis, uses, weight).run(), std::back_inserter(all));
  }
  const auto needs_less = [](const RecomputePoint& a, const RecomputePoint& b) {
    return a.live_bytes < b.live_bytes;
  };
  const std::size_t greedy_bytes = std::ranges::min_element(all, needs_less)->live_bytes;
  std::vector<RecomputePoint> segments;
  for (Selection& selection : segment_selections(analysis)) {
    segments.push_back(point_of(std::move(selection)));
  }
  const auto least = std::ranges::min_element(segments, needs_less);
  if (least != segments.end()) {
    std::ranges::move(Relaxation(analysis, *least).run(greedy_bytes), std::back_inserter(all));
  }
  std::ranges::move(segments, std::back_inserter(all));
  std::ranges::stable_sort(all, {}, &RecomputePoint::work);
  // Points that save hardly more than the one before them are not worth a plan each, except the
  // last.
  const std::size_t least_bytes = std::ranges::min_element(all, needs_less)->live_bytes;
  const std::size_t step = all.front().live_bytes / kRecordedSteps;
  std::vector<RecomputePoint> points;
  for (RecomputePoint& each : all) {
    const bool less = points.empty() || each.live_bytes + step <= points.back().live_bytes;
    const bool last =
        !less && each.live_bytes == least_bytes && each.live_bytes < points.back().live_bytes;
    if (less || last) points.push_back(std::move(each));
  }
  return points;
}

}  // namespace lockstep
