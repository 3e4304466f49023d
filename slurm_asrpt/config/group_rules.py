"""Defaults of ``[group]``: which words of a job script count, and which do not (docs/decisions/0008)."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


FEATURES = [
    "epochs epoch num_epochs n_epochs nb_epochs max_epochs num_train_epochs train_epochs total_epochs",
    "steps max_steps num_steps n_steps train_steps num_train_steps max_train_steps training_steps total_steps "
    "iterations num_iterations max_iterations iters n_iters num_iters max_iter max_iters train_iters total_iters",
    "batch_size bs batchsize batch train_batch_size per_device_train_batch_size per_gpu_train_batch_size "
    "micro_batch_size global_batch_size train_micro_batch_size_per_gpu",
    "lr learning_rate base_lr init_lr max_lr peak_lr",
    "length seq_len seq_length sequence_length max_length max_seq_len max_seq_length block_size",
    "accumulation gradient_accumulation_steps accumulate_grad_batches grad_accum accum_iter update_freq",
    "warmup warmup_steps warmup_epochs warmup_ratio num_warmup_steps",
    "weight_decay wd",
    "momentum",
    "dropout",
]

SIZES = [
    "procs nproc_per_node num_gpus",
    "nodes nnodes num_nodes",
    "tp tensor_model_parallel_size",
    "pp pipeline_model_parallel_size",
]
"""Options of torchrun, DeepSpeed and Megatron-LM that give how GPUs share a model."""

SEEDS = "seed random_seed manual_seed rng_seed global_seed data_seed pythonhashseed"
OUTPUT = (
    "o out output outdir out_dir output_dir outputdir output_path output_file outfile save save_dir save_path "
    "save_folder log logs log_dir logdir logging_dir log_file logfile log_path result_dir results_dir work_dir "
    "workdir exp_dir checkpoint_dir ckpt_dir tb_dir tensorboard_dir run_dir hydra.run.dir"
)
NAMES = (
    "run_name run_id exp_name exp_id experiment_name job_name job_id wandb_name wandb_run_name wandb_run_id wandb_dir "
    "date timestamp now"
)
PLACES = (
    "gpu gpus gpu_id gpu_ids ngpus n_gpus num_gpus devices device_ids cuda_visible_devices nodes nnodes num_nodes "
    "nproc nproc_per_node num_processes num_machines world_size rank local_rank node_rank machine_rank master_addr "
    "master_port main_process_ip main_process_port rdzv_endpoint rdzv_id dist_url port workers num_workers "
    "dataloader_num_workers omp_num_threads"
)
IGNORE_OPTIONS = _words(f"{SEEDS} {OUTPUT} {NAMES} {PLACES}")

IGNORE_COMMANDS = _words(
    "echo printf date mkdir touch tee sleep hostname whoami pwd which nvidia-smi printenv lscpu free df du ls cat "
    "asrpt-report"
)

SETUP_COMMANDS = _words(
    ". source module ml cd pushd popd set shopt ulimit umask cp mv rm ln rsync scp tar unzip wget curl git pip conda "
    "mamba micromamba make for case in done fi esac function return exit [ [[ test true false : wait trap read local "
    "declare unset shift alias"
)

_TORCHRUN = (
    "nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval start_method "
    "role log_dir r redirects t tee node_rank master_addr master_port local_addr local_ranks_filter logs_specs"
)
_MPIRUN = (
    "n np c h host hostfile machinefile f ppn npernode x map_by bind_to rank_by mca=2 wdir iface genv=2 launcher "
    "hosts oversubscribe_limit timeout output_filename"
)
_DEEPSPEED = "h hostfile i include e exclude num_nodes num_gpus master_addr master_port launcher launcher_args"
_ACCELERATE = (
    "config_file num_processes num_machines machine_rank main_process_ip main_process_port mixed_precision gpu_ids "
    "num_cpu_threads_per_process deepspeed_config_file deepspeed_hostfile rdzv_backend dynamo_backend zero_stage"
)
_SRUN = (
    "n ntasks nodes c cpus_per_task p partition t time w nodelist x exclude a account q qos g gpus gpus_per_node "
    "gpus_per_task gpus_per_socket gres ntasks_per_node ntasks_per_gpu mem mem_per_cpu mem_per_gpu mpi j job_name o "
    "output e error i input export cpu_bind gpu_bind distribution m d dependency container_image container_mounts "
    "container_name container_workdir chdir threads_per_core hint"
)
_CONTAINER = "b bind h home env env_file overlay pwd w workdir s scratch"

LAUNCHERS = [
    "python w x",
    f"torchrun {_TORCHRUN}",
    f"torch.distributed.run {_TORCHRUN}",
    f"torch.distributed.launch {_TORCHRUN}",
    f"accelerate/launch {_ACCELERATE}",
    f"accelerate.commands.launch {_ACCELERATE}",
    f"deepspeed {_DEEPSPEED}",
    f"deepspeed.launcher.runner {_DEEPSPEED}",
    f"mpirun {_MPIRUN}",
    f"mpiexec {_MPIRUN}",
    "horovodrun np h hosts hostfile network_interface",
    f"srun {_SRUN}",
    "bash",
    "sh",
    "env u unset c chdir s split_string",
    "export",
    "exec",
    "time f format o output",
    "command",
    "nohup",
    "nice n adjustment",
    "ionice c n p class classdata",
    "stdbuf i o e",
    "timeout*1 s signal k kill_after",
    "numactl c n m p i cpunodebind physcpubind membind preferred interleave",
    "taskset*1",
    f"singularity/exec*1 {_CONTAINER}",
    f"singularity/run*1 {_CONTAINER}",
    f"apptainer/exec*1 {_CONTAINER}",
    f"apptainer/run*1 {_CONTAINER}",
    "conda/run n name p prefix cwd",
    "poetry/run",
    "uv/run with p python",
]
"""A name, or two words joined by a slash; ``*N`` if N words precede the command. Then the options that have their
value in the next word, or with ``=N`` in the next N words."""
