// Measuring the links between workers: threads over Gloo's loopback, processes in shared memory and
// processes of MPI.
#include "lockstep/comm/link_probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "comm/ranks.h"
#include "lockstep/comm/link_end.h"
#include "lockstep/comm/membership.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A worker among threads of this process.
class ThreadMember final : public Membership {
 public:
  ThreadMember(Store& store, int worker, int workers)
      : store_(store), worker_(worker), workers_(workers) {}
  int worker() const override { return worker_; }
  int workers() const override { return workers_; }
  std::uint64_t generation() const override { return 1; }
  Store& store() override { return store_; }
  std::string address() const override { return "127.0.0.1"; }
  void on_failure(std::function<void(const Failure&)>) override {}
  void report_failure(const Failure&) override {}

 private:
  Store& store_;
  int worker_;
  int workers_;
};

LinkProbeOptions quick() {
  return {.block_bytes = 64 << 10, .time_per_pair = 4ms};
}

void expect_every_link_once(const std::vector<MeasuredLink>& speeds, int workers) {
  ASSERT_EQ(std::ssize(speeds), workers * (workers - 1));
  std::size_t next = 0;
  for (int from = 0; from < workers; ++from) {
    for (int to = 0; to < workers; ++to) {
      if (from == to) continue;
      const MeasuredLink& speed = speeds[next++];
      EXPECT_EQ(speed.from, from);
      EXPECT_EQ(speed.to, to);
      for (const double value : {speed.latency_s, speed.bytes_per_s, speed.both_bytes_per_s}) {
        EXPECT_TRUE(std::isfinite(value) && value > 0) << from << " to " << to << ": " << value;
      }
    }
  }
}

// Runs body(links, worker) on threads that are connected by Gloo.
void with_gloo_links(int workers, const std::function<void(WorkerLinks&, int)>& body) {
  LocalStore store;
  run_workers(workers, [&](int worker) {
    const auto links =
        make_worker_links(std::make_shared<ThreadMember>(store, worker, workers),
                          {.transport = Transport::Gloo, .timeout = std::chrono::minutes(2)});
    body(*links, worker);
  });
}

TEST(LinkProbe, MeasuresEveryLinkOverGlooOnce) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  constexpr int kWorkers = 3;
  std::vector<std::vector<MeasuredLink>> speeds(kWorkers);
  std::atomic<int> pairs_seen = 0;
  with_gloo_links(kWorkers, [&](WorkerLinks& links, int worker) {
    LinkProbeOptions options = quick();
    options.on_pair = [&](int done, int pairs) {
      EXPECT_EQ(pairs, 3);
      EXPECT_LE(done, 3);
      ++pairs_seen;
    };
    speeds[static_cast<std::size_t>(worker)] = probe_links(links, options);
  });
  EXPECT_EQ(pairs_seen, 3 * kWorkers);
  for (const auto& of_worker : speeds) {
    expect_every_link_once(of_worker, kWorkers);
    for (std::size_t i = 0; i < of_worker.size(); ++i) {
      EXPECT_EQ(of_worker[i].bytes_per_s, speeds[0][i].bytes_per_s) << "workers disagree";
    }
  }
}

TEST(LinkProbe, MeasuresEveryLinkInSharedMemoryOnce) {
  const auto statuses = run_processes({.processes = 3}, [](SharedHost& host) {
    // The links take the host over, which the test owns.
    const auto links = make_shared_links({&host, [](SharedHost*) {}});
    expect_every_link_once(probe_links(*links, quick()), 3);
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(LinkProbe, AWorkerAloneHasNoLinks) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  with_gloo_links(
      1, [](WorkerLinks& links, int) { EXPECT_TRUE(probe_links(links, quick()).empty()); });
}

TEST(LinkProbe, RefusesMessagesThatCannotBeHalved) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  with_gloo_links(1, [](WorkerLinks& links, int) {
    EXPECT_THROW(probe_links(links, {.block_bytes = 1001}), UsageError);
  });
}

// A block on its way does not confuse the words: the ends carry what they were given.
TEST(LinkProbe, EndsCarryWordsAroundBlocks) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  LocalStore store;
  run_workers(2, [&](int worker) {
    const auto wire = gloo_wires(gloo_options(store, worker, 2))(0);
    const auto end = make_wire_end(*wire, 1 - worker, 1 << 20, 30s);
    for (std::uint64_t i = 0; i < 20; ++i) {
      end->expect_word();
      worker == 0 ? end->send_block() : end->receive_block();
      end->send_word(100 * static_cast<std::uint64_t>(worker) + i);
      EXPECT_EQ(end->receive_word(), 100 * static_cast<std::uint64_t>(1 - worker) + i);
      end->swap_blocks();
    }
    // Nobody hangs up before the other has received everything.
    end->expect_word();
    end->send_word(1);
    end->receive_word();
  });
}

TEST(LinkProbe, AnEndThatHearsNothingNamesTheOther) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  LocalStore store;
  run_workers(2, [&](int worker) {
    const auto wire = gloo_wires(gloo_options(store, worker, 2))(0);
    if (worker == 1) {
      store.get("given up", 2min);
      return;
    }
    const auto end = make_wire_end(*wire, 1, 1 << 20, 1ms);
    try {
      end->receive_word();
      ADD_FAILURE() << "received a word that nobody has sent";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("worker 1"), std::string::npos) << error.what();
    }
    store.set("given up", "yes");
  });
}

TEST(LinkProbe, MeasuresTheLinkOverMpi) {
  if (std::getenv(kMpiVariable) == nullptr) {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI (libopenmpi-dev)";
    if (!have_mpirun()) GTEST_SKIP() << "there is no mpirun (openmpi-bin)";
    return start_mpi_workers(2);
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("lockstep_links_" + std::to_string(getppid()));
  FolderStore store(folder);
  const MpiPlace place = mpi_place();
  const auto links =
      make_worker_links(std::make_shared<ThreadMember>(store, place.worker, place.workers),
                        {.transport = Transport::Mpi});
  expect_every_link_once(probe_links(*links, quick()), 2);
  if (place.worker == 0) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep
