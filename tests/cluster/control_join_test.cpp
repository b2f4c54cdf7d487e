// join: workers of a job that show certificates.
#include "lockstep/cluster/join.h"

#include <gtest/gtest.h>

#include <future>

#include "cluster/certificates.h"
#include "cluster/control.h"

namespace lockstep {
namespace {

// A port that was free a moment ago.
std::string free_address() {
  const ControlServer server({.secret = "only for its port"});
  return server.address();
}

ClusterSpec place(const std::string& address, int worker) {
  return {.started_by = "a test",
          .role = worker == 0 ? Role::Chief : Role::Worker,
          .worker = worker,
          .workers = 2,
          .control_address = address,
          .serves_control = worker == 0,
          .local_worker = worker,
          .local_workers = 2};
}

TEST(JoinTls, WorkersShowCertificatesAndStrangersDisturbNobody) {
  Certificates certificates;
  const TlsFiles of_chief = certificates.make("authority", "chief");
  const TlsFiles of_worker = certificates.make("authority", "worker");
  const TlsFiles of_stranger = certificates.make("stranger", "other");
  const std::string address = free_address();
  auto chief =
      std::async(std::launch::async, [&] { return join(place(address, 0), {.tls = of_chief}); });
  // While the chief waits for its worker: one without a certificate, one of another authority.
  for (const TlsFiles& tls : {TlsFiles{}, of_stranger}) {
    try {
      join(place(address, 1), {.tls = tls, .join_timeout = milliseconds(500)});
      ADD_FAILURE() << "a stranger has joined";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("could not be joined"), std::string::npos)
          << error.what();
    }
  }
  auto worker =
      std::async(std::launch::async, [&] { return join(place(address, 1), {.tls = of_worker}); });
  const std::shared_ptr<Membership> first = chief.get();
  const std::shared_ptr<Membership> second = worker.get();
  first->store().set("a", "b");
  EXPECT_EQ(second->store().get("a", kHang), "b");
}

TEST(JoinTls, FilesAreNamedByTheEnvironment) {
  EXPECT_TRUE(job_tls(Environment{}).empty());
  const TlsFiles tls = job_tls({{"LOCKSTEP_TLS_CERT", "/a/cert"},
                                {"LOCKSTEP_TLS_KEY", "/a/key"},
                                {"LOCKSTEP_TLS_CA", "/a/ca"}});
  EXPECT_EQ(tls.certificate, "/a/cert");
  EXPECT_EQ(tls.key, "/a/key");
  EXPECT_EQ(tls.authority, "/a/ca");
  try {
    job_tls({{"LOCKSTEP_TLS_CERT", "/a/cert"}, {"LOCKSTEP_TLS_CA", "/a/ca"}});
    ADD_FAILURE() << "a key is missing";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("LOCKSTEP_TLS_KEY is not set"), std::string::npos)
        << error.what();
  }
}

TEST(JoinPorts, AreNamedByTheEnvironment) {
  EXPECT_TRUE(job_ports(Environment{}).any());
  EXPECT_EQ(job_ports({{"LOCKSTEP_PORT_RANGE", "29500-29600"}}),
            (PortRange{.low = 29500, .high = 29600}));
  EXPECT_THROW(job_ports({{"LOCKSTEP_PORT_RANGE", "29600-29500"}}), UsageError);
}

}  // namespace
}  // namespace lockstep
