// Canvas: draws lines and text; coordinates are pixels from the upper left corner.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::cli {

struct Point {
  double x = 0;
  double y = 0;
};

using Colour = std::array<std::uint8_t, 3>;

enum class Anchor { Left, Middle, Right };  // which end of a text is at its point

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void line(const std::vector<Point>& points, Colour colour, double width) = 0;
  virtual void disc(Point centre, double radius, Colour colour) = 0;
  // `at` is on the baseline; letters are `size` pixels high.
  virtual void text(Point at, const std::string& text, double size, Anchor anchor,
                    Colour colour) = 0;
  // The file's bytes.
  virtual std::string encoded() const = 0;
};

std::unique_ptr<Canvas> svg_canvas(int width, int height);
// Text is drawn as strokes, in capitals; needs no font file.
std::unique_ptr<Canvas> png_canvas(int width, int height);

}  // namespace lockstep::cli
