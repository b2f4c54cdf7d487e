#include "lockstep/cli/cluster_links.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/cli/format.h"
#include "lockstep/cluster/cluster_resolver.h"
#include "lockstep/cluster/join.h"
#include "lockstep/profile/recorder.h"

namespace lockstep::cli {
namespace {

using namespace std::chrono_literals;

constexpr int kMostShown = 16;                   // workers in a matrix
constexpr std::size_t kSlowest = 5;              // links that a summary names
constexpr auto kTimeForAll = 2min;               // divided among the pairs
constexpr std::int64_t kLineNs = 2'000'000'000;  // between lines of progress

ClusterSpec place_of_this_process() {
  const ClusterSpec spec = *default_resolver()->resolve();
  require(spec.workers > 1 && (spec.role == Role::Chief || spec.role == Role::Worker),
          "--cluster measures the links between workers, but this process is {}: start several, "
          "for example with `lockstep launch --workers 2 -- lockstep devices --cluster`, or the "
          "same command with srun or mpirun",
          spec.workers > 1 ? "no worker" : "alone");
  return spec;
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::vector<std::string> host_names(Membership& members) {
  const auto key = [](int worker) { return fmt::format("host name/{}", worker); };
  members.store().set(key(members.worker()), host_name());
  std::vector<std::string> names;
  for (int w = 0; w < members.workers(); ++w) {
    names.push_back(members.store().get(key(w), std::chrono::minutes(5)));
  }
  return names;
}

// Shows how many pairs are done: in place on a terminal, else in a line now and then.
class Progress {
 public:
  explicit Progress(bool shown) : shown_(shown), terminal_(isatty(STDERR_FILENO) != 0) {}

  void show(int done, int pairs) {
    const bool due = done == 0 || now_ns() - last_ns_ > kLineNs;
    if (!shown_ || (!terminal_ && !due)) return;
    last_ns_ = now_ns();
    const bool over = done == pairs;
    fmt::print(stderr, "{}measuring links: {} of {} pairs{}", terminal_ ? "\r" : "", done, pairs,
               terminal_ && !over ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  bool shown_;
  bool terminal_;
  std::int64_t last_ns_ = 0;
};

std::string worker_text(const ClusterLinks& links, int worker) {
  return fmt::format("{} ({})", worker, links.hosts[static_cast<std::size_t>(worker)]);
}

using Value = double (*)(const MeasuredLink&);
struct Measure {
  const char* name;
  Value value;
};
constexpr Measure kMeasures[] = {
    {"latency in µs", [](const MeasuredLink& one) { return one.latency_s * 1e6; }},
    {"GB/s one way", [](const MeasuredLink& one) { return one.bytes_per_s * 1e-9; }},
    {"GB/s both ways at once, together",
     [](const MeasuredLink& one) { return one.both_bytes_per_s * 1e-9; }}};

// Three digits that say something: "0.117", "11.7", "1170".
std::string short_number(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0);
}

std::string matrix_text(const ClusterLinks& links, const Measure& measure) {
  const int workers = static_cast<int>(links.hosts.size());
  std::string text = fmt::format("{}, from each row's worker to each column's\n    ", measure.name);
  for (int to = 0; to < workers; ++to) text += fmt::format("{:>8}", to);
  std::size_t next = 0;
  for (int from = 0; from < workers; ++from) {
    text += fmt::format("\n{:>4}", from);
    for (int to = 0; to < workers; ++to) {
      text += fmt::format("{:>8}",
                          from == to ? "-" : short_number(measure.value(links.speeds[next++])));
    }
  }
  return text + "\n";
}

std::string summary_text(const ClusterLinks& links) {
  std::string text = fmt::format("{:<34}{:>10}{:>10}{:>10}\n", "", "least", "median", "most");
  for (const Measure& measure : kMeasures) {
    std::vector<double> values;
    for (const MeasuredLink& one : links.speeds) values.push_back(measure.value(one));
    const auto [least, most] = std::ranges::minmax(values);
    text += fmt::format("{:<34}{:>10}{:>10}{:>10}\n", measure.name, short_number(least),
                        short_number(median(values)), short_number(most));
  }
  std::vector<MeasuredLink> slowest = links.speeds;
  std::ranges::stable_sort(slowest, {}, &MeasuredLink::bytes_per_s);
  slowest.resize(std::min(slowest.size(), kSlowest));
  text += "slowest links\n";
  for (const MeasuredLink& one : slowest) {
    text += fmt::format("  worker {} to worker {}: {} GB/s, latency {} µs\n",
                        worker_text(links, one.from), worker_text(links, one.to),
                        short_number(one.bytes_per_s * 1e-9), short_number(one.latency_s * 1e6));
  }
  return text;
}

}  // namespace

ClusterLinks measure_cluster_links(const TlsFiles& tls) {
  const ClusterSpec spec = place_of_this_process();
  const std::shared_ptr<Membership> members = join(spec, {.secret = job_secret(), .tls = tls});
  const std::unique_ptr<WorkerLinks> links = make_worker_links(members, {.ports = job_ports()});
  ClusterLinks result{.chief = links->worker() == 0,
                      .transport = links->transport(),
                      .hosts = host_names(*members),
                      .speeds = {}};
  const int pairs = links->workers() * (links->workers() - 1) / 2;
  Progress progress(result.chief);
  progress.show(0, pairs);
  const auto time = std::chrono::milliseconds(kTimeForAll) / pairs;
  result.speeds = probe_links(
      *links, {.time_per_pair = std::clamp<std::chrono::milliseconds>(time, 100ms, 1000ms),
               .on_pair = [&](int done, int all) { progress.show(done, all); }});
  return result;
}

Json links_json(const ClusterLinks& links) {
  Json json = Json::array();
  for (const MeasuredLink& one : links.speeds) {
    json.push_back({{"from", one.from},
                    {"to", one.to},
                    {"transport", links.transport},
                    {"latency_s", one.latency_s},
                    {"bytes_per_s", one.bytes_per_s},
                    {"both_bytes_per_s", one.both_bytes_per_s}});
  }
  return json;
}

std::string links_text(const ClusterLinks& links) {
  const int workers = static_cast<int>(links.hosts.size());
  std::string text =
      fmt::format("{} workers; {} carries bytes between them\n", workers, links.transport);
  if (workers > kMostShown) return text + summary_text(links);
  for (int w = 0; w < workers; ++w) text += fmt::format("worker {}\n", worker_text(links, w));
  for (const Measure& measure : kMeasures) text += "\n" + matrix_text(links, measure);
  return text;
}

}  // namespace lockstep::cli
