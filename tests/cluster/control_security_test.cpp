// Who is turned away from a control server, and that nobody else notices.
#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cluster/certificates.h"
#include "cluster/control.h"
#include "lockstep/cluster/control/control.pb.h"
#include "lockstep/cluster/control/control_state.h"
#include "lockstep/cluster/control/proof.h"

namespace lockstep {
namespace {

bool is_refusal(const ControlEvent& event) {
  return event.kind == ControlEventKind::Refused;
}

// Two workers that go on while others are turned away, and the server's events.
class ControlSecurity : public testing::Test {
 protected:
  Events events;
  ControlServer server{server_options(2, &events)};
  Workers workers{server.address(), 2};

  void expect_undisturbed() {
    on_threads(2, [&](int i) { workers[i].barrier("undisturbed", kHang); });
    EXPECT_FALSE(server.failure());
  }
  ControlClientOptions stranger() { return client_options(server.address(), 0); }
  std::string refused(const ControlClientOptions& options) {
    return error_of<UsageError>([&] { ControlClient client(options); });
  }
};

TEST_F(ControlSecurity, AWrongSecretIsRefused) {
  ControlClientOptions options = stranger();
  options.secret = "another secret";
  expect_contains(refused(options), {server.address().c_str(), "does not know this job's secret"});
  options.secret = "";
  expect_contains(refused(options), {"does not know this job's secret"});
  EXPECT_EQ(server.refused(), 2u);
  expect_undisturbed();
}

TEST_F(ControlSecurity, AWorkerOfAnotherJobIsRefused) {
  ControlClientOptions options = stranger();
  options.job = "another job";
  expect_contains(refused(options), {"job \"another job\"", "job \"lockstep\""});
  expect_undisturbed();
}

TEST_F(ControlSecurity, AnotherVersionIsRefusedWithBoth) {
  ControlClientOptions options = stranger();
  options.version = "control 0, Lockstep 0.0.1";
  expect_contains(refused(options),
                  {"control 0, Lockstep 0.0.1", control_version().c_str(), "install the same"});
  expect_undisturbed();
}

TEST_F(ControlSecurity, ANumberThatRunsAlreadyIsRefusedAndTheWorkerGoesOn) {
  ControlClientOptions options = stranger();
  options.identity = "elsewhere:pid 7";
  expect_contains(refused(options), {"number 0", "host:pid 0", "elsewhere:pid 7"});
  expect_undisturbed();
}

TEST_F(ControlSecurity, GarbageIsRefused) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string garbage(100'000, '\x16');
  send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
  // The server hangs up.
  timeval limit{.tv_sec = kHang.count(), .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte = 0;
  ssize_t got = 1;
  while (got > 0) got = recv(fd, &byte, 1, 0);
  EXPECT_TRUE(got == 0 || errno == ECONNRESET);
  close(fd);
  expect_undisturbed();
}

// A stream on which a test says what it likes.
class RawStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RawStream(const std::string& address)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    stub_.PrepareBidiStreamingCall(&context_, "/lockstep.control.Control/Attend", {}, this);
    AddHold();
    StartRead(&in_);
    StartCall();
  }
  ~RawStream() override {
    context_.TryCancel();
    ended.wait();
  }
  void send(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    out_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&out_);
    written_.wait([&, n = ++writes_](const int& done) { return done == n; });
  }
  void send(const control::ToServer& message) { send(message.SerializeAsString()); }
  control::ToWorker next() { return received.nth(taken_++); }
  Mailbox<control::ToWorker> received;
  Mailbox<grpc::Status> ended;

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (in_.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices) {
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
    control::ToWorker message;
    message.ParseFromString(bytes);
    received.put(message);
    StartRead(&in_);
  }
  void OnWriteDone(bool) override { written_.put(++done_); }
  void OnDone(const grpc::Status& status) override { ended.put(status); }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer in_;
  grpc::ByteBuffer out_;
  int writes_ = 0;
  int done_ = 0;
  std::size_t taken_ = 0;
  Mailbox<int> written_;
};

control::ToServer hello_message() {
  control::ToServer message;
  control::Hello& hello = *message.mutable_hello();
  hello.set_version(control_version());
  hello.set_job("lockstep");
  hello.set_worker(0);
  hello.set_nonce(std::string(kNonceBytes, 'n'));
  return message;
}

TEST_F(ControlSecurity, AReplayedHandshakeIsRefused) {
  // What a listener could have recorded: the proof for a challenge of before.
  const control::ToServer hello = hello_message();
  std::string recorded;
  {
    RawStream first(server.address());
    first.send(hello);
    const std::string nonce = first.next().challenge().nonce();
    recorded = prove("a secret of the tests", Prover::Worker,
                     {.job = "lockstep",
                      .worker = 0,
                      .worker_nonce = hello.hello().nonce(),
                      .server_nonce = nonce});
  }
  RawStream second(server.address());
  second.send(hello);
  second.next();
  control::ToServer proof;
  proof.mutable_proof()->set_proof(recorded);
  second.send(proof);
  const control::ToWorker answer = second.next();
  ASSERT_TRUE(answer.has_refusal());
  expect_contains(answer.refusal().message(), {"does not know this job's secret"});
  second.ended.wait();
  expect_undisturbed();
}

TEST_F(ControlSecurity, AMalformedMessageIsRefusedAndReported) {
  RawStream stream(server.address());
  stream.send(std::string("\xff\xff\xff\xff", 4));
  expect_contains(stream.next().refusal().message(), {"4 bytes cannot be read"});
  stream.ended.wait();
  expect_contains(events.wait(is_refusal).text, {"127.0.0.1", "4 bytes cannot be read"});
  expect_undisturbed();
}

TEST_F(ControlSecurity, AnOversizedMessageIsRefusedAndReported) {
  RawStream stream(server.address());
  stream.send(std::string(4 * kMaxControlMessage, 'x'));
  EXPECT_FALSE(stream.ended.wait().ok());
  expect_contains(events.wait(is_refusal).text, {"ended before its handshake"});
  expect_undisturbed();
}

TEST_F(ControlSecurity, CallsBeforeTheHandshakeAreRefused) {
  RawStream stream(server.address());
  control::ToServer message;
  message.mutable_set()->set_key("key");
  stream.send(message);
  expect_contains(stream.next().refusal().message(), {"was not expected here"});
  expect_undisturbed();
}

TEST_F(ControlSecurity, AnOversizedValueIsAnErrorOfItsCallOnly) {
  const std::string most(kMaxStoreValue, 'x');
  workers[0].store().set("largest", most);
  EXPECT_EQ(workers[1].store().get("largest", kHang), most);
  expect_contains(error_of<UsageError>([&] { workers[0].store().set("larger", most + "x"); }),
                  {"\"larger\"", "1048577", "1048576"});
  expect_undisturbed();
}

TEST(ControlJoin, OneNumberTwiceIsToldToBoth) {
  ControlServer server(server_options(2));
  on_threads(2, [&](int i) {
    ControlClientOptions options = client_options(server.address(), 1);
    options.identity = i == 0 ? "left:pid 1" : "right:pid 2";
    expect_contains(error_of<UsageError>([&] { ControlClient client(options); }),
                    {"number 1", "left:pid 1", "right:pid 2"});
  });
  Workers workers(server.address(), 2);
  EXPECT_EQ(workers[1].worker(), 1);
}

TEST(ControlJoin, AnotherNumberOfWorkersIsRefused) {
  ControlServer server(server_options(2));
  ControlClientOptions options = client_options(server.address(), 0);
  options.workers = 3;
  expect_contains(error_of<UsageError>([&] { ControlClient client(options); }),
                  {"expects 3 workers", "the server 2"});
  options = client_options(server.address(), 2);
  expect_contains(error_of<UsageError>([&] { ControlClient client(options); }),
                  {"no worker 2", "end at 1"});
}

TEST(ControlBind, OnlyLoopbackIsOpenWithoutASecret) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    expect_contains(error_of<UsageError>([&] { ControlServer server({.address = address}); }),
                    {address, "open to other machines", "secret"});
  }
  const ControlServer local({.address = "127.0.0.1:0"});
  ControlClient client({.address = local.address(), .join_timeout = kHang});
  EXPECT_EQ(client.worker(), 0);
}

TEST(ControlBind, AnAddressThatIsNoneIsAUsageError) {
  for (const char* address : {"", "host", ":1", "::1:5", "127.0.0.1:70000", "127.0.0.1:x",
                              "127.0.0.1:9-8", "[]:1", "127.0.0.1:0-5"}) {
    EXPECT_THROW(ControlServer server({.address = address}), UsageError) << address;
  }
  EXPECT_THROW(ControlClient client({.address = "127.0.0.1:0"}), UsageError);
}

TEST(ControlTls, CertificatesOfOneAuthorityAreEnoughAndNecessary) {
  Certificates certificates;
  const TlsFiles of_server = certificates.make("authority", "server");
  const TlsFiles of_worker = certificates.make("authority", "worker");
  const TlsFiles of_stranger = certificates.make("stranger", "other");
  Events events;
  ControlServerOptions options = server_options(2, &events);
  options.secret = "";
  options.tls = of_server;
  ControlServer server(options);
  Workers workers("localhost:" + std::to_string(server.port()), 2,
                  [&](ControlClientOptions& client) {
                    client.secret = "";
                    client.tls = of_worker;
                  });
  workers[0].store().set("a", "b");
  EXPECT_EQ(workers[1].store().get("a", kHang), "b");
  ControlClientOptions stranger = client_options(server.address(), 0);
  stranger.secret = "";
  stranger.join_timeout = milliseconds(300);
  // Without a certificate; with one of another authority; one that trusts the server's authority,
  // but was signed by another.
  for (const TlsFiles& tls : {TlsFiles{}, of_stranger,
                              TlsFiles{.certificate = of_stranger.certificate,
                              .key = of_stranger.key,
                              .authority = of_worker.authority}}) {
    stranger.tls = tls;
    expect_contains(error_of<CommError>([&] { ControlClient client(stranger); }),
                    {server.address().c_str(), "could not be joined"});
  }
  on_threads(2, [&](int i) { workers[i].barrier("undisturbed", kHang); });
  EXPECT_FALSE(server.failure());
}

TEST(ControlTls, MissingFilesAreNamed) {
  expect_contains(error_of<DataError>([] {
                    ControlServer server({.tls = {.certificate = "/no/certificate",
                                                  .key = "/no/key",
                                                  .authority = "/no/authority"}});
                  }),
                  {"/no/authority"});
  expect_contains(error_of<UsageError>(
                      [] { ControlServer server({.tls = {.certificate = "/no/certificate"}}); }),
                  {"the authority is missing"});
}

}  // namespace
}  // namespace lockstep
