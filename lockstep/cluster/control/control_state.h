// ControlState: what the control server knows and decides, without sockets, threads or a clock of
// its own: bytes and times go in, messages come out. ControlServer connects it with gRPC.
//
// A generation is forming until every place has a worker that waits for it; then all of them hear
// the members. The first failure in a formed generation ends it: every member hears the same one,
// and all that waits is answered. The policy then begins the next generation, or the owner does, or
// gives up.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/cluster/control/control.pb.h"
#include "lockstep/cluster/control/control_event.h"
#include "lockstep/comm/failure.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

inline constexpr std::size_t kMaxStoreValue = std::size_t{1} << 20;
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxStoreKeys = 100'000;
// Keys that begin so can be set until the next generation begins, also after a failure: a
// checkpoint from before it is still good.
inline constexpr std::string_view kCommitPrefix = "commit/";
inline constexpr std::size_t kMaxControlName = 1024;  // of keys, barriers, jobs, activities
inline constexpr std::size_t kMaxControlMessage = 2 * kMaxStoreValue;

struct ControlStateOptions {
  int workers = 1;
  std::string job = {};
  std::string secret = {};
  std::string version = {};
  std::chrono::milliseconds heartbeat_timeout{5000};
  std::chrono::milliseconds join_timeout{300'000};
  std::chrono::milliseconds progress_timeout{60'000};
  std::chrono::milliseconds handshake_timeout{5000};
  // Where it is not Stop, a failure begins the next generation; see control_succession.cpp.
  OnFailure on_failure = OnFailure::Stop;
};

class ControlState {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using SessionId = std::uint64_t;
  // The session's stream is to be closed after its `last` message.
  struct Outgoing {
    SessionId session = 0;
    control::ToWorker message;
    bool last = false;
  };

  explicit ControlState(ControlStateOptions options);

  // A stream has been opened, has brought a message, has ended.
  SessionId connect(const std::string& peer, Time now);
  void receive(SessionId id, std::string_view bytes, Time now);
  void disconnect(SessionId id, Time now);
  // Looks at the clock: silent workers, deadlines, progress.
  void tick(Time now);
  // Begins the next generation: place i is that of worker members[i] of the present one, or of a
  // newcomer where that is -1 or has ended. Others are refused. Ends the present one if it has not
  // failed.
  void begin_generation(const std::vector<int>& members, Time now);

  std::vector<Outgoing> take_outgoing();
  std::vector<ControlEvent> take_events();

  std::uint64_t generation() const { return generation_; }
  bool formed() const { return formed_; }
  const std::optional<Failure>& failure() const { return failure_; }
  // Connections and messages that were refused.
  std::uint64_t refused() const { return refused_; }

 private:
  // Joined: waits for the generation to form. Member: of generation `generation`.
  enum class Stage { Fresh, Challenged, Joined, Member };
  struct Session {
    Stage stage = Stage::Fresh;
    std::string peer;
    Time since{};     // when the stream was opened
    Time deadline{};  // of the join
    Time heard{};
    control::Hello hello;
    std::string nonce;
    int worker = -1;        // the place that it has or wants
    bool for_next = false;  // it joined when the present generation had been formed
    std::uint64_t generation = 0;
    std::uint64_t rejoin = 0;  // the id of a Rejoin that waits for a generation to be begun
    bool silent = false;
    std::string activity;
    std::uint64_t step = 0;
    bool waiting = false;
    int waiting_for = -1;
    std::uint64_t messages = 0;
    Time moved{};  // when any of these changed, but for the one that it waits for
  };
  struct Place {
    SessionId session = 0;  // 0: none, or no longer
    std::string name;       // "worker 2 (host:pid 4711)"
    std::string note;       // why nobody is here
    int seat = -1;          // the number that its worker asked for
    bool left = false;
  };
  // A Get or Barrier that is not answered yet.
  struct Wait {
    SessionId session = 0;
    std::uint64_t id = 0;
    bool barrier = false;
    std::string name;
    Time deadline{};
    std::chrono::milliseconds timeout{};
  };

  // control_state.cpp: streams and the handshake
  void dispatch(SessionId id, Session& session, const control::ToServer& message, Time now);
  void greet(SessionId id, Session& session, const control::Hello& hello);
  void check_proof(SessionId id, Session& session, const control::Proof& proof, Time now);
  void leave(SessionId id, Session& session);
  // Says why and closes the stream; one that had not joined counts as refused.
  void refuse(SessionId id, FailureKind kind, const std::string& why);
  control::ToWorker& send(SessionId id, bool last = false);
  void event(ControlEventKind kind, std::string text, int worker = -1,
             FailureCause cause = FailureCause::None, bool goes_on = false);
  // The number that the worker of a place asked for.
  int seat_of(int worker) const;

  // control_generation.cpp: places, generations, failures
  void join(SessionId id, Session& session, Time now);
  bool take_place(SessionId id, Session& session);
  void refuse_twice(SessionId id, const Session& session, SessionId other);
  void rejoin(SessionId id, Session& session, const control::Rejoin& request, Time now);
  void try_form(Time now);
  // A session has gone, for the reason that the note gives: a failure if it was a member.
  void lose(SessionId id, const std::string& note);
  void fail(const Failure& failure, FailureCause cause);
  // Tells all members that their generation has ended, and why.
  void end_generation(const Failure& failure, FailureCause cause, bool goes_on);
  bool is_current(const Session& session) const {
    return session.stage == Stage::Member && session.generation == generation_;
  }
  std::string missing_places() const;

  // control_succession.cpp: what comes after a failure
  bool may_go_on(const Failure& failure);
  void lost_while_forming(bool had_place);
  void left_while_forming(const std::string& who);
  std::vector<int> successors() const;
  // Workers that came while a generation was running.
  std::size_t newcomers() const;
  void admit(const Session& session, const control::Admit& request, Time now);
  // Begins the generation that a failure calls for.
  void advance(Time now);
  std::string name_of(const Session& session) const;

  // control_calls.cpp: store, barriers, reports
  bool check_call(SessionId id, const Session& session, std::uint64_t call,
                  std::uint64_t generation, const std::string& what, bool after_failure = false);
  void set(SessionId id, const Session& session, const control::Set& request);
  void get(SessionId id, const Session& session, const control::Get& request, Time now);
  void barrier(SessionId id, const Session& session, const control::Barrier& request, Time now);
  void report(const Session& session, const control::Report& request);
  void reply(SessionId id, std::uint64_t call, const std::string& value);
  void reply_error(SessionId id, std::uint64_t call, const std::string& why,
                   FailureKind kind = FailureKind::Comm);
  void end_waits(const std::string& why);
  void end_barriers(const std::string& why);
  void end_waits_of(SessionId id);
  void finish_barrier(const std::string& name);
  bool arrived(const std::string& barrier, SessionId session) const;
  std::string timeout_text(const Wait& wait) const;

  // control_watch.cpp: what the clock shows
  void heartbeat(SessionId id, Session& session, const control::Heartbeat& beat, Time now);
  void allow_for_pause(Time now);
  void watch_sessions(Time now);
  void watch_waits(Time now);
  void watch_progress(Time now);
  // What the worker at a place does, as far as it told: `; last in "saving"`.
  std::string activity_text(const Place& place) const;

  ControlStateOptions options_;
  SessionId last_session_ = 0;
  std::map<SessionId, Session> sessions_;
  std::uint64_t generation_ = 1;
  bool formed_ = false;
  std::vector<Place> places_;
  std::optional<Failure> failure_;
  bool next_is_due_ = false;       // after the failure
  std::string over_;               // why the generation that is forming never will; empty: it may
  std::uint64_t furthest_ = 0;     // the last step that any worker has told of
  int failures_without_step_ = 0;  // since then
  std::map<std::string, std::string> values_;
  std::size_t stored_ = 0;
  std::list<Wait> waits_;
  std::optional<Time> last_tick_;
  std::uint64_t refused_ = 0;
  std::vector<Outgoing> outgoing_;
  std::vector<ControlEvent> events_;
};

}  // namespace lockstep
