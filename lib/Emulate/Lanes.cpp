// What the lanes of a warp do together: exchanges, and matrices of 8 x 8 in shared memory.
#include "lib/Emulate/Machine.h"
#include "llvm/ADT/StringSwitch.h"

#include <cstring>

using namespace llvm;
using namespace recur::emulate;

enum Exchange { Butterfly, Up, Down, Index };

static void shuffle(Thread &thread, const Statement &s, const Slots *slots) {
  uint32_t values[32];
  for (unsigned lane = 0; lane < 32; ++lane) {
    values[lane] = thread.word(s.operands[1], slots[lane]);
    if (thread.word(s.operands[4], slots[lane]) != 0xffffffff)
      thread.fail("is for some of the lanes");
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    uint32_t by = thread.word(s.operands[2], slots[lane]) & 31,
             bound = thread.word(s.operands[3], slots[lane]);
    uint32_t segment = bound >> 8 & 31, first = lane & segment, last = first | (bound & 31 & ~segment);
    unsigned from = 0;
    bool valid = true;
    switch (s.kind) {
    case Butterfly:
      from = lane ^ by;
      valid = from <= last;
      break;
    case Up:
      from = lane - by;
      valid = int(from) >= int(last);
      break;
    case Down:
      from = lane + by;
      valid = from <= last;
      break;
    case Index:
      from = first | (by & ~segment);
      valid = from <= last;
    }
    thread.set(s.operands[0].items[0], slots[lane], values[valid ? from : lane]);
    if (s.operands[0].items.size() > 1)
      thread.set(s.operands[0].items[1], slots[lane], valid);
  }
}

enum Vote { Any, All, Ballot };

static void vote(Thread &thread, const Statement &s, const Slots *slots) {
  uint32_t ballot = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    ballot |= (thread.word(s.operands[1], slots[lane]) & 1) << lane;
    if (thread.word(s.operands[2], slots[lane]) != 0xffffffff)
      thread.fail("is for some of the lanes");
  }
  for (unsigned lane = 0; lane < 32; ++lane)
    thread.set(s.operands[0].items[0], slots[lane],
               s.kind == Ballot ? ballot
               : s.kind == Any  ? ballot != 0
                                : !~ballot);
}

// Which lane that is nothing says: not the first one, in which most would work.
static void elect(Thread &thread, const Statement &s, const Slots *slots) {
  constexpr unsigned elected = 31;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (thread.word(s.operands[1], slots[lane]) != 0xffffffff)
      thread.fail("is for some of the lanes");
    thread.set(s.operands[0].items[0], slots[lane], elected);
    thread.set(s.operands[0].items[1], slots[lane], lane == elected);
  }
}

// The address of a row of a matrix, which a lane of each names.
static uint32_t rowAddress(Thread &thread, const Statement &s, const Slots *slots, unsigned matrix,
                           unsigned row) {
  const OperandGroup &group = s.operands[s.words[0] == "stmatrix" ? 0 : 1];
  uint32_t address = thread.address(group, slots[8 * matrix + row]);
  if (address % 16)
    thread.fail("uses a row that is at no multiple of 16 bytes");
  return address;
}

static void loadMatrices(Thread &thread, const Statement &s, const Slots *slots) {
  SharedMemory &shared = thread.block->shared;
  for (unsigned matrix = 0; matrix < s.count; ++matrix) {
    uint16_t rows[8][8];
    for (unsigned row = 0; row < 8; ++row) {
      uint32_t address = rowAddress(thread, s, slots, matrix, row);
      thread.expect(shared.read(address, 16, thread.warp->access()));
      memcpy(rows[row], shared.at<char>(address), 16);
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      unsigned r = lane / 4, c = lane % 4 * 2;
      uint32_t low = s.flag ? rows[c][r] : rows[r][c], high = s.flag ? rows[c + 1][r] : rows[r][c + 1];
      thread.set(s.operands[0].items[matrix], slots[lane], high << 16 | low);
    }
  }
}

static void storeMatrices(Thread &thread, const Statement &s, const Slots *slots) {
  SharedMemory &shared = thread.block->shared;
  for (unsigned matrix = 0; matrix < s.count; ++matrix) {
    uint16_t rows[8][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
      unsigned r = lane / 4, c = lane % 4 * 2;
      uint32_t pair = thread.get(s.operands[1].items[matrix], slots[lane]);
      (s.flag ? rows[c][r] : rows[r][c]) = pair;
      (s.flag ? rows[c + 1][r] : rows[r][c + 1]) = pair >> 16;
    }
    for (unsigned row = 0; row < 8; ++row) {
      uint32_t address = rowAddress(thread, s, slots, matrix, row);
      thread.expect(shared.write(address, 16, thread.warp->access()));
      memcpy(shared.at<char>(address), rows[row], 16);
    }
  }
}

static void transposeMatrix(Thread &thread, const Statement &s, const Slots *slots) {
  uint32_t pairs[32];
  for (unsigned lane = 0; lane < 32; ++lane)
    pairs[lane] = thread.word(s.operands[1], slots[lane]);
  auto entry = [&](unsigned row, unsigned column) {
    return pairs[4 * row + column / 2] >> 16 * (column % 2) & 0xffff;
  };
  for (unsigned lane = 0; lane < 32; ++lane) {
    unsigned r = lane / 4, c = lane % 4 * 2;
    thread.set(s.operands[0].items[0], slots[lane], entry(c + 1, r) << 16 | entry(c, r));
  }
}

bool recur::emulate::decodeLanes(Statement &s) {
  s.scope = Scope::Warp;
  if (s.words[0] == "shfl" && s.words.size() == 4 && s.words[1] == "sync" && s.operands.size() == 5) {
    s.kind = StringSwitch<int64_t>(s.words[2])
                 .Case("bfly", Butterfly)
                 .Case("up", Up)
                 .Case("down", Down)
                 .Case("idx", Index)
                 .Default(-1);
    s.runWarp = shuffle;
    return s.kind >= 0;
  }
  if (s.words[0] == "vote" && s.words.size() == 4 && s.words[1] == "sync" && s.operands.size() == 3) {
    s.kind = StringSwitch<int64_t>(s.words[2])
                 .Case("any", Any)
                 .Case("all", All)
                 .Case("ballot", Ballot)
                 .Default(-1);
    s.runWarp = vote;
    return s.kind >= 0;
  }
  if (s.words[0] == "elect" && s.has("sync") && s.operands.size() == 2 && s.operands[0].items.size() == 2) {
    s.runWarp = elect;
    return true;
  }
  if ((s.words[0] == "ldmatrix" || s.words[0] == "stmatrix") && s.has("m8n8") && s.operands.size() == 2) {
    s.count = s.has("x4") ? 4 : s.has("x2") ? 2 : 1;
    s.flag = s.has("trans");
    s.runWarp = s.words[0] == "ldmatrix" ? loadMatrices : storeMatrices;
    return int64_t(s.operands[s.words[0] == "stmatrix"].items.size()) == s.count;
  }
  if (s.words[0] == "movmatrix" && s.has("m8n8") && s.has("trans") && s.operands.size() == 2) {
    s.runWarp = transposeMatrix;
    return true;
  }
  s.scope = Scope::Thread;
  return false;
}
