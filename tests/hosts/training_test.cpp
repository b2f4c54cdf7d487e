// Workers on several hosts train as one worker does, whatever the links between them.
#include "hosts/training.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Six steps an epoch, the last one short.
const Words kMlp = {"--model", "mlp", "--global-batch", "36", "--steps", "6", "--epochs", "2"};
const Words kLenet = {"--model", "lenet", "--global-batch", "24", "--steps", "3", "--epochs", "1"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words ports(const Words& hosts) {
  Words addresses;
  for (const std::string& host : hosts) addresses.push_back(host + ":5000");
  return addresses;
}

TEST_F(OverHosts, TwoAndThreeHostsGiveTheLossesOfOneWorker) {
  Hosts hosts(3);
  const Words addresses = ports({hosts.address(0), hosts.address(1), hosts.address(2)});
  for (const std::string replicas : {"1", "2"}) {
    expect_losses_of_one(
        start_all(hosts, {0, 1, 2}, addresses, with(kMlp, {"--replicas", replicas})), kMlp);
    const Words two(addresses.begin(), addresses.begin() + 2);
    expect_losses_of_one(start_all(hosts, {0, 1}, two, with(kMlp, {"--replicas", replicas})), kMlp);
  }
}

TEST_F(OverHosts, TwoWorkersOnEachOfTwoHostsGiveTheLossesOfOneWorker) {
  Hosts hosts(2);
  const Words addresses = {hosts.address(0) + ":5000", hosts.address(0) + ":5001",
                           hosts.address(1) + ":5000", hosts.address(1) + ":5001"};
  transport_ = "Gloo, shared memory within a host";
  expect_losses_of_one(start_all(hosts, {0, 0, 1, 1}, addresses, kMlp), kMlp);
}

TEST_F(OverHosts, ASlowLinkChangesNoLoss) {
  Hosts hosts(2);
  hosts.limit(1, "50mbit");
  expect_losses_of_one(
      start_all(hosts, {0, 1}, ports({hosts.address(0), hosts.address(1)}), kLenet), kLenet);
}

TEST_F(OverHosts, DelayAndLossOfPacketsChangeNoLoss) {
  if (const std::string missing = FarNetwork::missing(); !missing.empty()) GTEST_SKIP() << missing;
  Hosts hosts(2);
  const FarNetwork far(hosts, {.delay = 5ms, .loss = 0.01, .seed = 7});
  expect_losses_of_one(start_all(hosts, {0, 1}, ports({far.address(0), far.address(1)}), kLenet),
                       kLenet);
  EXPECT_GT(far.delivered(), 0U);
  EXPECT_GT(far.dropped(), 0U);
}

TEST_F(OverHosts, AddressesMayBeOfIPv6) {
  Hosts hosts(2);
  expect_losses_of_one(
      start_all(hosts, {0, 1},
                ports({"[" + hosts.address_six(0) + "]", "[" + hosts.address_six(1) + "]"}), kMlp),
      kMlp);
}

// Besides the chief's own port, 5000: the ports of one end of each connection are of the range.
TEST_F(OverHosts, WorkersAreConnectedAtPortsOfTheRange) {
  Hosts hosts(2);
  const Workers workers = start_all(hosts, {0, 1}, ports({hosts.address(0), hosts.address(1)}),
                                    {"--model", "mlp", "--global-batch", "36", "--steps", "6",
                                     "--epochs", "100000", "--port-range", "29500-29520"});
  ASSERT_TRUE(workers[0]->await_text("epoch", kGuard)) << workers[0]->text();
  hosts.network(0).shell(
      "ss -Htn state established | awk '"
      "function port(text) { sub(/.*:/, \"\", text); return text + 0 } "
      "function of_range(p) { return p >= 29500 && p <= 29520 } "
      "{ a = port($3); b = port($4) } "
      "of_range(a) || of_range(b) { ++found; next } "
      "a != 5000 && b != 5000 { print; bad = 1 } "
      "END { print found + 0, \"connections of the range\"; exit bad || !found }'");
}

TEST_F(OverHosts, PlainVariablesAreEnough) {
  Hosts hosts(2);
  Workers workers;
  for (int w = 0; w < 2; ++w) {
    workers.push_back(hosts.start(w, train(w,
                                           {{"RANK", std::to_string(w)},
                                            {"WORLD_SIZE", "2"},
                                            {"MASTER_ADDR", hosts.address(0)},
                                            {"MASTER_PORT", "5000"}},
                                           with(kMlp, {"--json", "result.json"}))));
  }
  expect_losses_of_one(workers, kMlp);
}

// Debian's installer writes such a line into the chief's /etc/hosts; other hosts know better.
class NameOfTheChief : public OverHosts {
 protected:
  ProcessOptions train_there(int worker, const std::string& known_as, Variables variables) {
    ProcessOptions options =
        train(worker, std::move(variables),
              with(kMlp, {"--strategy", "multi-worker", "--json", "result.json"}));
    options.hosts_file = folder_ / fmt::format("hosts-{}", worker);
    std::ofstream(options.hosts_file) << "127.0.0.1 localhost\n" << known_as << " host-0\n";
    return options;
  }
};

TEST_F(NameOfTheChief, MayBeALoopbackAddressOnItsOwnHost) {
  Hosts hosts(2);
  const Words addresses = {"host-0:5000", "host-0:5001", hosts.address(1) + ":5000"};
  transport_ = "Gloo, shared memory within a host";
  Workers workers;
  for (int w = 0; w < 3; ++w) {
    const std::string known_as = w < 2 ? "127.0.1.1" : hosts.address(0);
    workers.push_back(
        hosts.start(w / 2, train_there(w, known_as, {{"TF_CONFIG", tf_config(addresses, w)}})));
  }
  expect_losses_of_one(workers, kMlp);
}

TEST_F(NameOfTheChief, MayBeALoopbackAddressForPlainVariables) {
  Hosts hosts(2);
  // As where a default route leads through another card than the first one.
  hosts.network(0).shell(
      "ip link add name dummy type bridge; ip address add 10.79.0.1/24 dev dummy; "
      "ip link set dummy up; ip route add default via " +
      hosts.address(1));
  Workers workers;
  for (int w = 0; w < 2; ++w) {
    workers.push_back(hosts.start(w, train_there(w, w == 0 ? "127.0.1.1" : hosts.address(0),
                                                 {{"RANK", std::to_string(w)},
                                                  {"WORLD_SIZE", "2"},
                                                  {"MASTER_ADDR", "host-0"},
                                                  {"MASTER_PORT", "5000"}})));
  }
  expect_losses_of_one(workers, kMlp);
}

TEST_F(NameOfTheChief, NeedsASecretToBeServedToOthers) {
  Hosts hosts(2);
  has_secret_ = false;
  const Words addresses = {"host-0:5000", hosts.address(1) + ":5000"};
  const auto chief =
      hosts.start(0, train_there(0, "127.0.1.1", {{"TF_CONFIG", tf_config(addresses, 0)}}));
  EXPECT_EQ(chief->await_end(kGuard), 2) << chief->text();
  EXPECT_NE(chief->text().find("LOCKSTEP_SECRET_FILE"), std::string::npos) << chief->text();
}

TEST_F(OverHosts, WithoutASecretTheChiefRefusesToServeOtherHosts) {
  Hosts hosts(2);
  has_secret_ = false;
  const Workers workers =
      start_all(hosts, {0}, {hosts.address(0) + ":5000", hosts.address(1) + ":5000"}, kMlp);
  EXPECT_EQ(workers[0]->await_end(kGuard), 2) << workers[0]->text();
  for (const char* words : {"10.77.0.1:5000", "open to other machines", "LOCKSTEP_SECRET_FILE"}) {
    EXPECT_NE(workers[0]->text().find(words), std::string::npos) << workers[0]->text();
  }
}

TEST_F(OverHosts, AWorkerWithAnotherSecretIsRefused) {
  Hosts hosts(2);
  const Words addresses = ports({hosts.address(0), hosts.address(1)});
  std::ofstream(folder_ / "another") << "a guess\n";
  const auto chief = hosts.start(0, train(0, {{"TF_CONFIG", tf_config(addresses, 0)}},
                                          with(kMlp, {"--strategy", "multi-worker"})));
  const auto other =
      hosts.start(1, train(1,
                           {{"TF_CONFIG", tf_config(addresses, 1)},
                            {"LOCKSTEP_SECRET_FILE", (folder_ / "another").string()}},
                           with(kMlp, {"--strategy", "multi-worker"})));
  EXPECT_EQ(other->await_end(kGuard), 2) << other->text();
  EXPECT_NE(other->text().find("secret"), std::string::npos) << other->text();
}

}  // namespace
}  // namespace lockstep
