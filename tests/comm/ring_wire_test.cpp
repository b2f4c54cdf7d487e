// Wires within a host: messages in shared memory, alone and beside Gloo or MPI between hosts.
#include <signal.h>

#include "comm/ranks.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/remote/mixed_wire.h"
#include "lockstep/comm/shared/ring_wire.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

Bytes numbered(std::size_t bytes, int seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] =
        static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(seed) * 7) & 0xFF);
  }
  return data;
}

void await(Transfer& transfer) {
  while (!transfer.await()) {
  }
}

std::unique_ptr<Wire> ring_wire(Store& store, int worker, int workers,
                                std::chrono::milliseconds timeout = 2min) {
  RingWireOptions options{
      .store = &store, .worker = worker, .workers = workers, .timeout = timeout};
  for (int other = 0; other < workers; ++other) options.host.push_back(other);
  return make_ring_wire(options);
}

// Which workers are on the host of one of them: workers w and v are if hosts[w] == hosts[v].
std::vector<int> host_of(const std::vector<int>& hosts, int worker) {
  std::vector<int> host;
  for (int other = 0; other < std::ssize(hosts); ++other) {
    if (hosts[static_cast<std::size_t>(other)] == hosts[static_cast<std::size_t>(worker)]) {
      host.push_back(other);
    }
  }
  return host;
}

MakeWire mixed(Store& store, const std::vector<int>& hosts, int worker, MakeWire between_hosts) {
  return mixed_wires({.between_hosts = std::move(between_hosts),
                      .store = &store,
                      .worker = worker,
                      .workers = static_cast<int>(hosts.size()),
                      .host = host_of(hosts, worker)});
}

MakeWire mixed_over_gloo(Store& store, const std::vector<int>& hosts, int worker) {
  return mixed(store, hosts, worker,
               gloo_wires(gloo_options(store, worker, static_cast<int>(hosts.size()))));
}

TEST(RingWire, MessagesLongerThanARingPassOneAnotherInBothDirections) {
  LocalStore store;
  run_workers(3, [&](int worker) {
    const auto wire = ring_wire(store, worker, 3);
    for (int round = 0; round < 20; ++round) {
      std::vector<Bytes> sent;
      std::vector<Bytes> got;
      std::vector<std::unique_ptr<Transfer>> transfers;
      sent.reserve(6);
      got.reserve(6);
      for (int other = 0; other < 3; ++other) {
        if (other == worker) continue;
        // The long message is sent first and received last.
        for (const std::size_t bytes : {std::size_t{700'001}, std::size_t{13}}) {
          sent.push_back(numbered(bytes, worker + round));
          transfers.push_back(wire->send(other, bytes, sent.back()));
        }
      }
      for (int other = 0; other < 3; ++other) {
        if (other == worker) continue;
        for (const std::size_t bytes : {std::size_t{13}, std::size_t{700'001}}) {
          got.emplace_back(bytes + 5);  // a message may be shorter than the memory
          await(*wire->receive(other, bytes, got.back()));
          got.back().resize(bytes);
          EXPECT_TRUE(got.back() == numbered(bytes, other + round)) << bytes << " of " << other;
        }
      }
      for (const auto& transfer : transfers) await(*transfer);
    }
    // Nobody leaves before all have received.
    store.set("done " + std::to_string(worker), "");
    for (int other = 0; other < 3; ++other) store.get("done " + std::to_string(other), 2min);
  });
}

TEST(RingWire, AMessageThatNobodyExpectsBlocksNoOther) {
  LocalStore store;
  run_workers(2, [&](int worker) {
    const auto wire = ring_wire(store, worker, 2);
    const Bytes unexpected(2'000'000);
    Bytes wanted = numbered(100, 1);
    if (worker == 0) {
      const auto never = wire->send(1, 1, unexpected);
      await(*wire->send(1, 2, wanted));
      store.get("received", 2min);
    } else {
      Bytes got(100);
      await(*wire->receive(0, 2, got));
      EXPECT_TRUE(got == wanted);
      store.set("received", "");
    }
  });
}

TEST(RingWire, AClosedEndIsTold) {
  LocalStore store;
  run_workers(2, [&](int worker) {
    auto wire = ring_wire(store, worker, 2);
    Bytes data = numbered(1000, 3);
    if (worker == 0) {
      await(*wire->send(1, 1, data));
      return;
    }
    Bytes got(1000);
    await(*wire->receive(0, 1, got));  // what was written before the end counts
    EXPECT_TRUE(got == data);
    try {
      await(*wire->receive(0, 2, got));
      ADD_FAILURE() << "a message came from nowhere";
    } catch (const LostWorker& lost) {
      EXPECT_EQ(lost.worker(), 0);
    }
  });
}

TEST(RingWire, AWorkerThatDoesNotComeIsNamedAfterTheTimeout) {
  LocalStore store;
  try {
    ring_wire(store, 0, 2, 200ms);
    ADD_FAILURE() << "a wire was made without worker 1";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("worker 0 has waited 200 ms for worker 1"),
              std::string::npos)
        << error.what();
  }
}

TEST(MixedWire, SumsHaveTheBitsOfGlooWhereverTheWorkersAre) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  const std::vector<std::vector<int>> places = {
      {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 1}, {0, 0, 0, 0}, {0, 1, 2, 0, 1}};
  for (const std::vector<int>& hosts : places) {
    std::vector<int> ranks(hosts.size(), 1);
    ranks[1] = 2;
    const int count = static_cast<int>(hosts.size()) + 1;
    for (const std::size_t elements : {std::size_t{1003}, std::size_t{500'011}}) {
      std::vector<Bytes> given;
      for (int rank = 0; rank < count; ++rank) {
        given.push_back(random_elements(DType::F32, elements, 5, static_cast<std::uint64_t>(rank)));
      }
      const Bytes expected = sum_over_ranks(DType::F32, given, ranks);
      LocalStore store;
      run_workers(static_cast<int>(hosts.size()), [&](int worker) {
        RemoteGroup group(remote_group_of(ranks, mixed_over_gloo(store, hosts, worker)));
        for (int round = 0; round < 2; ++round) {
          expect_no_errors(run_ranks(group, [&](Communicator& comm) {
            Bytes mine = given[static_cast<std::size_t>(comm.rank())];
            const auto sum = comm.all_reduce(mine, DType::F32);
            sum->start();
            sum->finish();
            EXPECT_TRUE(mine == expected) << "worker " << worker;
          }));
          group.reset();
        }
      });
    }
  }
}

TEST(MixedWire, SumsHaveTheBitsOfGlooOverMpiBetweenHosts) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const std::size_t elements = 300'007;
  std::vector<Bytes> given;
  for (int rank = 0; rank < 4; ++rank) {
    given.push_back(random_elements(DType::F32, elements, 5, static_cast<std::uint64_t>(rank)));
  }
  const Bytes expected = sum_over_ranks(DType::F32, given, {1, 1, 1, 1});
  // Where the processes of the job meet; the one that starts them makes and removes it.
  const char* place = std::getenv("LOCKSTEP_TEST_STORE");
  const std::filesystem::path folder =
      place != nullptr
          ? std::filesystem::path(place)
          : std::filesystem::temp_directory_path() / ("lockstep-mixed-" + std::to_string(getpid()));
  if (place == nullptr) setenv("LOCKSTEP_TEST_STORE", folder.c_str(), 1);
  run_mpi_job(4, [&] {
    FolderStore store(folder);
    const int worker = mpi_place().worker;
    RemoteGroup group(remote_group_of({1, 1, 1, 1}, mixed(store, hosts, worker, mpi_wires())));
    expect_no_errors(run_ranks(group, [&](Communicator& comm) {
      Bytes mine = given[static_cast<std::size_t>(comm.rank())];
      const auto sum = comm.all_reduce(mine, DType::F32);
      sum->start();
      sum->finish();
      EXPECT_TRUE(mine == expected) << "worker " << worker;
    }));
  });
  if (place == nullptr) std::filesystem::remove_all(folder);
}

// Worker 1 shares a host with worker 0, and worker 2 is elsewhere: both name it.
TEST(MixedWire, AKilledNeighbourIsNamedByAll) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo (libgloo-dev)";
  const auto statuses =
      run_processes_with_store({.processes = 3}, [&](SharedHost& host, Store& store) {
        RemoteGroup group(
            remote_group_of({1, 1, 1}, mixed_over_gloo(store, {0, 0, 1}, host.process())));
        const auto errors = run_ranks(group, [&](Communicator& comm) {
          Bytes data(10'000'000);
          const auto sum = comm.all_reduce(data, DType::F32);
          sum->start();
          if (comm.rank() == 1) raise(SIGKILL);
          sum->finish();
        });
        std::string error;
        for (const std::string& one : errors) error += one;
        EXPECT_NE(error.find("worker 1 has ended or cannot be reached"), std::string::npos)
            << error;
      });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL) << statuses[1];
  EXPECT_EQ(statuses[2], 0);
}

}  // namespace
}  // namespace lockstep
