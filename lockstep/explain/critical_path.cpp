#include "lockstep/explain/critical_path.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace lockstep {
namespace {

constexpr std::string_view kBeside = " communication";

// Where each instruction is in a step: on the track of its rank and, for a collective, on the one
// beside it.
struct RankSpans {
  std::size_t track = 0;
  std::optional<std::size_t> beside;
  std::map<std::size_t, std::size_t> instruction_of;  // by span of `track`
  std::map<std::size_t, std::size_t> span_of;         // of `beside`, by instruction
};

class Finder {
 public:
  Finder(const ExampleStep& step, const std::vector<PlannedInstruction>& plan, bool aside)
      : step_(step), plan_(plan), aside_(aside) {
    for (std::size_t t = 0; t < step.tracks.size(); ++t) {
      add_rank(t);
    }
  }

  std::vector<CriticalSpan> find() {
    std::vector<CriticalSpan> path;
    std::optional<CriticalSpan> at = last();
    // Every turn goes back in time, or along the plan; clocks of workers may be off a little.
    for (std::size_t turns = 0; at && turns < limit(); ++turns) {
      path.push_back(*at);
      at = before(*at);
    }
    std::ranges::reverse(path);
    return path;
  }

 private:
  const ProfiledSpan& span(CriticalSpan at) const { return step_.tracks[at.track].spans[at.span]; }
  std::size_t limit() const {
    std::size_t spans = 0;
    for (const ProfiledTrack& track : step_.tracks) spans += track.spans.size();
    return spans;
  }

  // A rank is a track that computes; the collectives of its communication stream are beside it.
  void add_rank(std::size_t t) {
    const ProfiledTrack& track = step_.tracks[t];
    const bool computes = std::ranges::any_of(track.spans, [&](const ProfiledSpan& each) {
      return each.kind == SpanKind::Compute && is_instruction(each.name);
    });
    if (!computes || track.name.ends_with(kBeside)) return;
    RankSpans rank{.track = t, .beside = {}, .instruction_of = {}, .span_of = {}};
    for (std::size_t b = 0; b < step_.tracks.size(); ++b) {
      const ProfiledTrack& other = step_.tracks[b];
      if (other.worker != track.worker || other.name != track.name + std::string(kBeside)) continue;
      rank.beside = b;
      match(other, [&](std::size_t span, std::size_t instruction) {
        rank.span_of.emplace(instruction, span);
      });
    }
    match(track, [&](std::size_t s, std::size_t instruction) {
      const ProfiledSpan& own = track.spans[s];
      const bool waits = own.kind != SpanKind::Compute;
      rank.instruction_of.emplace(s,
                                  waits ? awaited(rank, own).value_or(instruction) : instruction);
    });
    ranks_.push_back(std::move(rank));
  }

  // The collective that a rank waits for or works on: those of one name end in the order of the
  // plan, so it is the first that has not ended.
  std::optional<std::size_t> awaited(const RankSpans& rank, const ProfiledSpan& own) const {
    constexpr double kSameTime = 1e-9;
    std::optional<std::size_t> first;
    double end = 0;
    for (const auto& [instruction, s] : rank.span_of) {
      const ProfiledSpan& collective = step_.tracks[*rank.beside].spans[s];
      if (collective.name != own.name || collective.end_s < own.end_s - kSameTime) continue;
      if (first && collective.end_s >= end) continue;
      first = instruction;
      end = collective.end_s;
    }
    return first;
  }

  bool is_instruction(const std::string& name) const {
    return std::ranges::any_of(plan_, [&](const auto& each) { return each.name == name; });
  }

  // Instructions of one name are recorded in the order of the plan; waiting for a collective may
  // be recorded in several spans.
  template <class F>
  void match(const ProfiledTrack& track, const F& f) const {
    std::map<std::string_view, std::vector<std::size_t>> places;
    for (std::size_t i = 0; i < plan_.size(); ++i) places[plan_[i].name].push_back(i);
    std::map<std::string_view, std::size_t> seen;
    for (std::size_t s = 0; s < track.spans.size(); ++s) {
      const auto found = places.find(track.spans[s].name);
      if (found == places.end()) continue;
      const bool once = track.spans[s].kind == SpanKind::Compute || track.name.ends_with(kBeside);
      std::size_t& next = seen[found->first];
      f(s, found->second[std::min(next, found->second.size() - 1)]);
      if (once) ++next;
    }
  }

  // The span of a replica that ended last.
  std::optional<CriticalSpan> last() const {
    std::optional<CriticalSpan> latest;
    for (const RankSpans& rank : ranks_) {
      for (const auto& [s, instruction] : rank.instruction_of) {
        const CriticalSpan at{rank.track, s};
        if (!latest || span(at).end_s > span(*latest).end_s) latest = at;
      }
    }
    return latest;
  }

  const RankSpans* rank_at(std::size_t track) const {
    for (const RankSpans& rank : ranks_) {
      if (rank.track == track || rank.beside == track) return &rank;
    }
    return nullptr;
  }

  std::optional<CriticalSpan> before(CriticalSpan at) const {
    const RankSpans* rank = rank_at(at.track);
    if (rank == nullptr) return std::nullopt;
    if (at.track != rank->track) return starter_of(*rank, at.span);
    // Waiting for a collective, or an instruction that needs one which ended just before it.
    const auto own = rank->instruction_of.find(at.span);
    if (own != rank->instruction_of.end()) {
      const PlannedInstruction& instruction = plan_[own->second];
      // Between hosts a thread of its own communicates. Within a host the ranks do it
      // themselves, between two kernels: who waits, waits for what the last of them does.
      const auto collective = beside(*rank, own->second);
      const bool waits =
          span(at).kind == SpanKind::Wait || (span(at).kind == SpanKind::Communication && aside_);
      if (waits && collective && span(*collective).begin_s < span(at).begin_s) {
        if (aside_) return collective;
        const RankSpans& last = last_to(*rank, own->second);
        if (&last != rank) return before_time(last, span(at).end_s);
      }
      const std::optional<CriticalSpan> needed = latest_needed(*rank, instruction, at);
      const std::optional<CriticalSpan> stream = previous(at);
      if (needed && (!stream || span(*needed).end_s > span(*stream).end_s)) return needed;
      return stream;
    }
    return previous(at);
  }

  std::optional<CriticalSpan> previous(CriticalSpan at) const {
    const std::vector<ProfiledSpan>& spans = step_.tracks[at.track].spans;
    for (std::size_t s = at.span; s-- > 0;) {
      if (spans[s].end_s > spans[s].begin_s) return CriticalSpan{at.track, s};
    }
    return std::nullopt;
  }

  std::optional<CriticalSpan> beside(const RankSpans& rank, std::size_t instruction) const {
    const auto found = rank.span_of.find(instruction);
    if (!rank.beside || found == rank.span_of.end()) return std::nullopt;
    return CriticalSpan{*rank.beside, found->second};
  }

  // Of the collectives that an instruction needs, the one that ended last before it did.
  std::optional<CriticalSpan> latest_needed(const RankSpans& rank,
                                            const PlannedInstruction& instruction,
                                            CriticalSpan at) const {
    std::optional<CriticalSpan> latest;
    for (const int needed : instruction.after) {
      const auto found = beside(rank, static_cast<std::size_t>(needed));
      if (found && span(*found).end_s >= span(at).end_s) continue;
      if (found && (!latest || span(*found).end_s > span(*latest).end_s)) latest = found;
    }
    return latest;
  }

  // What the rank that came last to a collective did before it started it or, where a link carries
  // one after another, the collective before it.
  std::optional<CriticalSpan> starter_of(const RankSpans& rank, std::size_t s) const {
    const auto own =
        std::ranges::find_if(rank.span_of, [&](const auto& each) { return each.second == s; });
    if (own == rank.span_of.end()) return std::nullopt;
    const RankSpans& last = last_to(rank, own->first);
    const CriticalSpan started = *beside(last, own->first);
    if (aside_ && started.span > 0) {
      const CriticalSpan earlier{started.track, started.span - 1};
      if (span(earlier).end_s > span(started).begin_s) return earlier;
    }
    return before_time(last, span(started).begin_s);
  }

  // The rank that started a collective last.
  const RankSpans& last_to(const RankSpans& rank, std::size_t instruction) const {
    const RankSpans* last = &rank;
    for (const RankSpans& other : ranks_) {
      const auto theirs = beside(other, instruction);
      const auto latest = beside(*last, instruction);
      if (theirs && (!latest || span(*theirs).begin_s > span(*latest).begin_s)) last = &other;
    }
    return *last;
  }

  // What a rank did just before a time.
  std::optional<CriticalSpan> before_time(const RankSpans& rank, double time) const {
    const std::vector<ProfiledSpan>& spans = step_.tracks[rank.track].spans;
    std::optional<CriticalSpan> before;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].begin_s >= time || spans[i].end_s <= spans[i].begin_s) continue;
      if (!rank.instruction_of.contains(i)) continue;
      before = CriticalSpan{rank.track, i};
    }
    return before;
  }

  const ExampleStep& step_;
  const std::vector<PlannedInstruction>& plan_;
  std::vector<RankSpans> ranks_;
  bool aside_;
};

}  // namespace

std::vector<CriticalSpan> critical_path(const ExampleStep& step,
                                        const std::vector<PlannedInstruction>& plan, bool aside) {
  return Finder(step, plan, aside).find();
}

std::vector<CriticalShare> critical_shares(const ExampleStep& step,
                                           const std::vector<CriticalSpan>& path) {
  std::map<std::pair<std::size_t, SpanKind>, double> sums;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const ProfiledSpan& span = step.tracks[path[i].track].spans[path[i].span];
    // A span counts from when the one before it ended: only then was it waited for.
    double begin = span.begin_s;
    if (i > 0) {
      const ProfiledSpan& earlier = step.tracks[path[i - 1].track].spans[path[i - 1].span];
      begin = std::max(begin, std::min(earlier.end_s, span.end_s));
    }
    sums[{path[i].track, span.kind}] += std::max(0.0, span.end_s - begin);
  }
  std::vector<CriticalShare> shares;
  for (const auto& [key, seconds] : sums) {
    const ProfiledTrack& track = step.tracks[key.first];
    shares.push_back(
        {.track = track.name, .worker = track.worker, .kind = key.second, .seconds = seconds});
  }
  std::ranges::stable_sort(shares, std::greater<>(), &CriticalShare::seconds);
  return shares;
}

}  // namespace lockstep
