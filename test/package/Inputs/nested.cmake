# A project that has Recur as a folder.
cmake_minimum_required(VERSION 3.25)
project(Nested LANGUAGES C CXX)
set(RECUR_BUILD_TESTS OFF)
add_subdirectory(${RECUR} recur)
recur_add_library(average SPEC average.rec BIND d=8)
add_executable(nested main.c)
target_link_libraries(nested PRIVATE average)
