// The elements of several data sets in turns; interleave_cursor.cpp says how.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/data/node.h"
#include "lockstep/data/tuner.h"

namespace lockstep {

// What all cursors of an interleave share.
struct Interleaving {
  DatasetFunction function;
  InterleaveOptions options;
  // What the elements are, and the first data set that the function made: all are measured as one.
  std::vector<ElementSpec> spec;
  NodePtr model;
};

class InterleaveCursor final : public Cursor {
 public:
  InterleaveCursor(NodePtr input, const Context& context,
                   std::shared_ptr<const Interleaving> interleaving, Stage& stage);
  ~InterleaveCursor() override;

  std::optional<Element> next() override;
  std::int64_t skip(std::int64_t count) override;
  void save(PositionWriter& state) const override;
  void restore(PositionReader& state) override;
  std::int64_t state_size() const override;

 private:
  struct Ready {
    Element element;
    Position behind;
    std::size_t reserved = 0;
  };

  // A data set that was opened, or could not be.
  struct Inner {
    ~Inner();

    Element outer;    // what it was made of
    Position before;  // the outer input's, in front of that
    NodePtr node;
    Runtime* runtime = nullptr;
    std::unique_ptr<Input> input;
    std::optional<Position> behind;  // the last element handed out; the consumer's alone

    // Guarded by the cursor's mutex.
    std::deque<Ready> ready;
    bool busy = false;  // somebody is in its input
    bool ended = false;
    std::exception_ptr error;
  };

  bool ahead() const { return interleaving_->options.parallel != 1; }

  // Which data set is next, in order.
  std::optional<Element> next_in_turn();
  // The same for whichever is ready.
  std::optional<Element> next_ready();
  void advance();
  void close(std::size_t slot);

  std::unique_ptr<Inner> pull();
  std::unique_ptr<Inner> make(Element outer, Position before) const;
  void build(Inner& inner) const;
  std::unique_ptr<Inner> next_inner();
  void look_ahead();

  // What the consumer gets from one data set; nothing at its end.
  std::optional<Element> take(Inner& inner);
  Element hand_out(Inner& inner, Ready ready);
  // Makes one element; needs the lock and lets go of it meanwhile.
  std::optional<Ready> produce(Inner& inner, std::unique_lock<std::mutex>& lock);

  // Looks how many threads there should be; with more, more data sets are opened ahead.
  void tune();
  void ask_for_threads();
  void work(Track* track);
  Inner* emptiest_in_turn();
  int wanting() const;
  bool wants_more(const Inner& inner) const;

  std::shared_ptr<const Interleaving> interleaving_;
  Context context_;
  Stage& stage_;
  const char* span_name_;
  std::size_t capacity_;  // elements that wait in front of each data set
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();

  std::exception_ptr error_;
  std::exception_ptr outer_error_;  // met with while looking ahead
  bool started_ = false;            // others have worked
  Input outer_;

  mutable std::mutex
      mutex_;  // guards what follows, though the consumer alone changes the first four
  std::vector<std::unique_ptr<Inner>> slots_;
  std::deque<std::unique_ptr<Inner>> opened_ahead_;
  std::size_t slot_ = 0;      // whose turn it is
  std::int64_t in_turn_ = 0;  // elements that it has given in this turn
  std::condition_variable changed_;
  ThreadTuner tuner_;
  int workers_ = 0;  // asked for or working
  bool look_again_ = true;
  bool short_of_memory_ = false;
  bool stopping_ = false;
};

}  // namespace lockstep
